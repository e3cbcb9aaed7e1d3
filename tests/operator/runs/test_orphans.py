"""Which programs no InferletRun wants any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from tartlet import ProgramInfo, Usage
from tartlet_common.errors.registry import Unavailable
from tartlet_operator.api.inferlet_run import InferletRunStatus
from tartlet_operator.api.meta import Key
from tartlet_operator.cluster.kube import ApiError
from tartlet_operator.machinery.context import ControlView
from tartlet_operator.machinery.store import RunSeen, Store
from tartlet_operator.runs import orphans
from tartlet_operator.runs import reconcile as reconcile_run
from tartlet_operator.runs.decisions import launch_key
from tartlet_operator.runs.orphans import find
from tests.operator.objects import body

UID, OTHER = "0b3a9c1e-5d53-4c0e-9a57-1f0f2f1b7a11", "5ff0a35c-9d4e-44b1-8a4d-6c3b0e3d9a02"


def program(name: str, key: str) -> ProgramInfo:
    return ProgramInfo(name, "x.py", "running", "ns", 0.0, 0.0, Usage(), None, "", 0, idempotency_key=key)


def found(key: str, runs: dict[str, InferletRunStatus]) -> bool:
    return bool(find([program("p", key)], runs))


def test_a_program_whose_run_is_gone_or_ended_is_found() -> None:
    assert found(launch_key(UID, 1), {})
    assert found(launch_key(UID, 1), {OTHER: InferletRunStatus(phase="Running", attempts=1)})
    assert found(launch_key(UID, 1), {UID: InferletRunStatus(phase="Failed", attempts=1)})
    assert found(launch_key(UID, 1), {UID: InferletRunStatus(phase="Running", attempts=2)})


def test_a_program_that_a_run_wants_is_left_alone() -> None:
    assert not found(launch_key(UID, 2), {UID: InferletRunStatus(phase="Running", attempts=2)})
    assert not found(launch_key(UID, 1), {UID: InferletRunStatus()}), "launched, and not written yet"
    assert not found(launch_key(UID, 2), {UID: InferletRunStatus(phase="Pending", attempts=1)})


def test_a_program_that_no_operator_launched_is_left_alone() -> None:
    for key in ("", "mine", "inferletrun-", "inferletrun-1", f"inferletrun-{UID}-", f"{UID}-1", f"inferletrun-{UID}-x"):
        assert not found(key, {})


class Followers:
    """Records the programs that are followed and ended."""

    def __init__(self) -> None:
        self.full = False
        self.programs: set[str] = set()
        self.ended: list[str] = []

    def follow(self, key: Key, program_id: str, uid: str) -> None:
        self.programs.add(program_id)

    def forget_another(self, key: Key, uid: str) -> str:
        return ""

    def followed_s(self, key: Key, program_id: str) -> float:
        return 0.0

    def forget(self, key: Key) -> str:
        return self.programs.pop() if self.programs else ""

    def outcome(self, *_: object) -> None:
        return None

    async def end(self, program_id: str, reason: str) -> None:
        self.ended.append(program_id)


RUN = Key("InferletRun", "ns", "r")


def context(*programs: ProgramInfo, phase: str = "Pending") -> Any:
    """The context of an operator that has seen one run, which is gone, and a runtime with these programs."""

    async def listed(tenant: str) -> list[ProgramInfo]:
        assert tenant == "ns"
        return list(programs)

    async def pages(kind: str, namespace: str) -> AsyncIterator[dict[str, Any]]:
        yield {"metadata": {"namespace": namespace, "name": "other", "uid": OTHER}, "status": {"phase": "Running"}}

    store = Store()
    store.saw_run(RUN, RunSeen("i", phase))
    client, api = SimpleNamespace(list=listed), SimpleNamespace(pages=pages)
    return SimpleNamespace(
        store=store,
        client=client,
        api=api,
        followers=Followers(),
        namespaces=["ns", "other"],
        forget=store.forget,
    )


async def test_an_unanswered_launch_is_ended_with_its_run() -> None:
    ctx = context(program("heard", launch_key(UID, 1)), program("another's", launch_key(OTHER, 1)))
    await reconcile_run.gone(ctx, RUN)
    assert ctx.followers.ended == ["heard"]
    ctx = context(program("not its own", launch_key(UID, 1)), phase="Succeeded")
    await reconcile_run.gone(ctx, RUN)
    assert ctx.followers.ended == []


async def test_a_run_whose_status_cannot_be_read_keeps_its_program() -> None:
    ctx = context(program("heard", launch_key(UID, 1)), program("odd", launch_key(OTHER, 1)))

    async def pages(kind: str, namespace: str) -> AsyncIterator[dict[str, Any]]:
        yield {"metadata": {"namespace": namespace, "name": "odd", "uid": OTHER}, "status": {"attempts": "many"}}

    ctx.api.pages = pages
    await orphans.end(ctx, ["ns"])
    assert ctx.followers.ended == ["heard"]


async def test_a_runtime_that_does_not_list_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphans, "_LIST_TIMEOUT_S", 0.01)
    ctx = context()
    ctx.client.list = lambda tenant: asyncio.Event().wait()
    with pytest.raises(Unavailable, match="lists no programs"):
        await reconcile_run.gone(ctx, RUN)
    assert RUN in ctx.store.runs, "it will be asked again"


async def test_a_program_is_known_even_if_its_launch_could_not_be_written() -> None:
    ctx = context()

    async def launch(spec: object) -> SimpleNamespace:
        return SimpleNamespace(program_id="p")

    async def get(*_: object) -> dict[str, Any]:
        ready = {"type": "Ready", "status": "True", "reason": "Catalogued", "message": "", "observedGeneration": 1}
        time = {"lastTransitionTime": "2026-01-01T00:00:00Z"}
        status = {"observedGeneration": 1, "conditions": [ready | time]}
        return body("Inferlet", "i", {"source": {"inline": "pass"}}, status)

    async def write_status(*_: object) -> None:
        raise ApiError(500, "InternalError", "it is restarting")

    ctx.client.launch, ctx.api.get, ctx.write_status = launch, get, write_status
    settings = SimpleNamespace(max_runs=1, run_ttl_s=-1)
    ctx.unix_s, ctx.settings, ctx.view = 1.8e9, settings, ControlView()
    with pytest.raises(ApiError):
        await reconcile_run.reconcile(ctx, RUN, body("InferletRun", "r", {"inferlet": "i"}))
    assert ctx.followers.programs == {"p"}
    await reconcile_run.gone(ctx, RUN)
    assert ctx.followers.ended == ["p"]
