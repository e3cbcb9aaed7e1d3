"""What of the watch's events becomes work."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from tartlet_operator.meta import Key
from tartlet_operator.store import Store
from tartlet_operator.watch import Watch, slim
from tartlet_operator.work_queue import WorkQueue
from tartlet_operator.written import Filtered, Written
from tests.operator.objects import body

KEY = Key("Inferlet", "ns", "i")


def seen(version: int, generation: int = 1, observed: int = 1) -> dict[str, Any]:
    made = body("Inferlet", "i", {"source": {"inline": "pass"}}, {"observedGeneration": observed})
    made["metadata"] |= {"resourceVersion": str(version), "generation": generation, "managedFields": [{"manager": "m"}]}
    return made


def line(version: int) -> bytes:
    return json.dumps({"type": "MODIFIED", "object": seen(version)}, separators=(",", ":"), sort_keys=True).encode()


class Content:
    """A stream that comes in pieces of a few bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    async def iter_chunked(self, _: int) -> AsyncIterator[bytes]:
        for start in range(0, len(self.data), 50):
            yield self.data[start : start + 50]


async def test_our_own_last_write_is_left_out_of_the_watch_unless_the_spec_is_newer() -> None:
    written = Written()
    written.wrote(KEY, 7, alone=True)
    written.wrote(Key("Inferlet", "ns", "changed"), 9, alone=False)  # its spec changed while we wrote
    content = Content(b"".join(line(version) + b"\n" for version in (6, 7, 8, 9)))
    shown = b"".join([data async for data in Filtered(content, written.echoed).iter_chunked(1 << 20)])
    events = [json.loads(x) for x in shown.splitlines()]
    assert [(e["type"], e["object"]["metadata"]["resourceVersion"]) for e in events] == [
        ("MODIFIED", "6"),
        ("BOOKMARK", "7"),
        ("MODIFIED", "8"),
        ("MODIFIED", "9"),
    ]
    again = Content(b"".join(line(version) + b"\n" for version in (7, 7, 7)))  # a watch that broke shows it once more
    shown = b"".join([data async for data in Filtered(again, written.echoed).iter_chunked(1 << 20)])
    assert b"MODIFIED" not in shown


def test_bodies_older_than_our_last_write_are_known() -> None:
    written = Written()
    written.wrote(KEY, 7, alone=True)
    assert written.newer_than(KEY, 6)
    assert not written.newer_than(KEY, 7)
    assert not written.echoed(line(7)), "it was seen"
    written.wrote(KEY, 8, alone=True)
    written.wrote(KEY, 10, alone=True)
    assert not written.echoed(line(8)), "only the last one says what there is"
    assert written.echoed(line(10))
    assert written.newer_than(KEY, 9), "an event from before it may still wait"


async def test_a_lists_next_page_waits_until_the_last_one_is_worked_on() -> None:
    queue = WorkQueue()
    watch = Watch(queue, Store(), Written(), lambda: None)
    for n in range(1000):
        queue.add(Key("Inferlet", "ns", f"i{n}"))

    request: Any = SimpleNamespace(url=SimpleNamespace(query={"continue": "token"}))
    page: Any = object()

    async def answered(_: Any) -> Any:
        return page

    asking = asyncio.ensure_future(watch._between(request, answered))
    await asyncio.sleep(0.05)
    assert not asking.done()

    async def handled(key: Key, _: Any) -> None:
        return None

    worker = asyncio.ensure_future(queue.work(handled))
    assert await asyncio.wait_for(asking, 5) is page
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)


def test_a_body_is_kept_without_what_nobody_reads() -> None:
    kept = slim(seen(3))
    assert set(kept["metadata"]) == {"name", "namespace", "uid", "generation", "resourceVersion"}
    assert set(kept) == {"apiVersion", "kind", "metadata", "spec", "status"}
