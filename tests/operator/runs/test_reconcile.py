"""Unwanted programs of InferletRuns are ended, whatever the operator has seen of the run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tartlet_common.config.settings import OperatorSettings
from tartlet_operator.api.inferlet_run import InferletRunStatus
from tartlet_operator.api.meta import Key
from tartlet_operator.machinery.context import ControlView
from tartlet_operator.machinery.followers import Followers
from tartlet_operator.machinery.store import Store
from tartlet_operator.runs import reconcile as reconcile_run
from tests.operator.objects import body

RUN = Key("InferletRun", "ns", "r")
START = "2027-01-15T08:00:00Z"
NOW = 1_800_000_000.0
RUNNING = {"phase": "Running", "programId": "p", "attempts": 1, "startTime": START}


class Client:
    """A runtime whose programs run until they are ended."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, str]] = []

    async def attach(self, *_: object, **__: object) -> None:
        await asyncio.Event().wait()

    async def kill(self, program_id: str, reason: str) -> None:
        self.ended.append((program_id, reason))


@asynccontextmanager
async def operator() -> AsyncIterator[Any]:
    """An operator's context, without Inferlets, that records the phases written."""
    client: Any = Client()
    following = Followers(client, 8, lambda *_: None)
    ctx = SimpleNamespace(
        client=client,
        followers=following,
        store=Store(),
        view=ControlView(),
        unix_s=NOW,
        written=[],
        settings=OperatorSettings(),
    )

    async def get(*_: object) -> None:
        return None

    async def write_status(_: Key, __: object, ___: object, new: InferletRunStatus, ____: object = ()) -> None:
        ctx.written.append(new.phase)

    ctx.api, ctx.write_status = SimpleNamespace(get=get), write_status
    running = asyncio.create_task(following.run())
    await asyncio.sleep(0)
    yield ctx
    running.cancel()


def a_run(uid: str, status: dict[str, Any] | None = None, **meta: str) -> dict[str, Any]:
    made = body("InferletRun", "r", {"inferlet": "i"}, status)
    made["metadata"] |= {"uid": uid, **meta}
    return made


@pytest.mark.parametrize(
    ("status", "written"),
    [
        (None, ["Pending"]),
        ({"phase": "Pending", "startTime": "2027-01-01T00:00:00Z"}, ["Failed"]),
        ({"phase": "Succeeded"}, []),
    ],
)
async def test_the_program_of_a_run_that_was_made_again_is_ended(
    status: dict[str, Any] | None, written: list[str]
) -> None:
    async with operator() as ctx:
        await reconcile_run.reconcile(ctx, RUN, a_run("first", RUNNING))
        assert ctx.followers.programs == {"p"}
        await reconcile_run.reconcile(ctx, RUN, a_run("second", status))
        assert ctx.client.ended == [("p", "its InferletRun was deleted and made again")]
        assert ctx.written == written


@pytest.mark.parametrize("known", [True, False])
async def test_the_program_of_a_run_that_waits_for_a_finalizer_is_ended(known: bool) -> None:
    async with operator() as ctx:
        if known:
            await reconcile_run.reconcile(ctx, RUN, a_run("first", RUNNING))
        await reconcile_run.reconcile(ctx, RUN, a_run("first", RUNNING, deletionTimestamp=START))
        assert ctx.client.ended == [("p", "its InferletRun was deleted")]
        assert (ctx.written, ctx.followers.programs) == (["Failed"], set())


async def test_a_program_that_its_run_does_not_name_is_ended_with_the_run() -> None:
    async with operator() as ctx:
        ctx.followers.follow(RUN, "p", "first")  # its launch could not be written
        await reconcile_run.reconcile(ctx, RUN, a_run("first", {"startTime": START}))
        assert ctx.client.ended == [], "it may be asked for again under its key"
        await reconcile_run.reconcile(ctx, RUN, a_run("first", {"startTime": "2027-01-01T00:00:00Z"}))
        assert ctx.client.ended == [("p", "its InferletRun has ended")]
        assert ctx.written == ["Pending", "Failed"]


async def test_a_program_past_its_deadline_is_ended_once() -> None:
    async with operator() as ctx:
        late = RUNNING | {"startTime": "2027-01-01T00:00:00Z"}
        await reconcile_run.reconcile(ctx, RUN, a_run("first", late))
        ctx.followers._followed[RUN].since_s -= 3600.0
        await reconcile_run.reconcile(ctx, RUN, a_run("first", late))
        assert ctx.client.ended == [("p", "past the run's deadline")]
        assert ctx.written == ["Failed"]
