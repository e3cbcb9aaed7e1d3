"""What happens while an Inferlet's source is fetched, and when it needn't be."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest

from tartlet_operator.api.meta import Key
from tartlet_operator.api.reasons import Reason
from tartlet_operator.control.catalogue import entry, fingerprint
from tartlet_operator.inferlets.reconcile import reconcile
from tartlet_operator.machinery.sources import SourceProblem, StillFetching
from tartlet_operator.machinery.store import Store
from tartlet_operator.machinery.work_queue import LATER, WorkQueue
from tests.operator.objects import body, inferlet

KEY = Key("Inferlet", "ns", "i")
DIGEST = hashlib.sha256(b"pass").hexdigest()
URL = {"source": {"url": {"url": "https://example.org/a.py", "digest": f"sha256:{DIGEST}"}}}


def context(fetch: Any, held: dict[str, str] | None = None) -> Any:
    written: list[Any] = []

    async def write_status(_: Key, __: Any, ___: Any, new: Any, ____: Any) -> None:
        written.append(new)

    view = SimpleNamespace(shared={}, catalogue={"ns": held or {}})
    fetcher = SimpleNamespace(fetch=fetch)
    ctx = SimpleNamespace(store=Store(), queue=WorkQueue(), view=view, fetcher=fetcher, now="2026-01-01T00:00:00Z")
    ctx.write_status, ctx.written = write_status, written
    return ctx


async def test_a_config_map_that_changes_while_it_is_fetched_queues_its_inferlet() -> None:
    async def fetch(*_: Any) -> bytes:
        found = list(ctx.store.inferlets_from("ns", "sources"))
        assert found == [KEY]
        raise StillFetching(asyncio.create_task(asyncio.sleep(0, b"")))

    ctx = context(fetch)
    await reconcile(ctx, KEY, body("Inferlet", "i", {"source": {"configMap": {"name": "sources", "key": "a"}}}, {}))


async def test_a_finished_download_queues_its_inferlet_and_nothing_is_written_before() -> None:
    came = asyncio.Event()

    async def fetch(*_: Any) -> bytes:
        raise StillFetching(coming)

    async def come() -> bytes:
        await came.wait()
        return b""

    coming = asyncio.create_task(come())
    ctx = context(fetch)
    assert await reconcile(ctx, KEY, body("Inferlet", "i", URL, {})) == LATER
    assert not ctx.written
    assert ctx.queue.idle
    came.set()
    await coming
    await asyncio.sleep(0)
    assert list(ctx.queue._pending) == [KEY]


async def test_what_control_holds_is_not_fetched_again() -> None:
    async def fetch(*_: Any) -> bytes:
        raise AssertionError("the server may be away")

    held = fingerprint(entry(inferlet(**URL).spec, "ns", "i", b"pass", "", "*"))
    ctx = context(fetch, {"i": held})
    await reconcile(ctx, KEY, body("Inferlet", "i", URL, {}))
    (status,) = ctx.written
    assert status.digest == f"sha256:{DIGEST}"
    assert {c.type: c.status for c in status.conditions}["Ready"] == "True"


@pytest.mark.parametrize("held", [{}, {"i": "a version before"}])
async def test_a_digest_is_that_of_the_last_valid_version_while_control_has_it(held: dict[str, str]) -> None:
    async def fetch(*_: Any) -> bytes:
        raise SourceProblem(Reason.SOURCE_MISSING, "it is gone")

    before = f"sha256:{DIGEST}"
    spec = {"source": {"configMap": {"name": "sources", "key": "a"}}}
    ctx = context(fetch, held)
    await reconcile(ctx, KEY, body("Inferlet", "i", spec, {"digest": before}))
    (status,) = ctx.written
    assert status.digest == (before if held else "")


async def test_what_is_put_while_the_catalogue_is_listed_anew_is_known_to_be_there() -> None:
    async def fetch(*_: Any) -> bytes:
        return b"pass"

    async def put(_: Any) -> None:
        ctx.view.catalogue = {"ns": {"another": "2"}}

    spec = {"source": {"inline": "pass"}}
    made, ctx = entry(inferlet(**spec).spec, "ns", "i", b"pass", "", "*"), context(fetch)
    ctx.control, ctx.valid = SimpleNamespace(put=put), OrderedDict.fromkeys([f"{made.source.language} {DIGEST}"])
    await reconcile(ctx, KEY, body("Inferlet", "i", spec, {}))
    assert ctx.view.catalogue["ns"].keys() == {"i", "another"}


async def test_what_another_of_the_name_left_is_taken_out_of_the_catalogue() -> None:
    async def fetch(*_: Any) -> bytes:
        raise SourceProblem(Reason.SOURCE_MISSING, "it isn't there")

    async def delete(namespace: str, name: str) -> None:
        assert (namespace, name) == ("ns", "i")

    spec = {"source": {"configMap": {"name": "sources", "key": "a"}}}
    ctx = context(fetch, {"i": "a version of one that was deleted while nobody looked"})
    ctx.control = SimpleNamespace(delete=delete)
    await reconcile(ctx, KEY, body("Inferlet", "i", spec, {}))
    assert ctx.view.catalogue == {"ns": {}}
