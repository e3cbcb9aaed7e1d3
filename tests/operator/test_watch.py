"""What of the watch's events becomes work."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from tartlet_operator.meta import Key
from tartlet_operator.store import Store
from tartlet_operator.watch import Watch, slim
from tartlet_operator.work_queue import WorkQueue
from tests.operator.objects import body

KEY = Key("Inferlet", "ns", "i")


def seen(version: int, generation: int = 1, observed: int = 1) -> dict[str, Any]:
    made = body("Inferlet", "i", {"source": {"inline": "pass"}}, {"observedGeneration": observed})
    made["metadata"] |= {"resourceVersion": str(version), "generation": generation, "managedFields": [{"manager": "m"}]}
    return made


async def test_our_own_last_write_is_no_news_unless_the_spec_is_newer() -> None:
    queue, written = WorkQueue(), {KEY: 7}
    watch = Watch(queue, Store(), written, lambda: None)
    await watch._own({"type": "MODIFIED", "object": seen(7)})
    assert (len(queue), written) == (0, {})
    written[KEY] = 8
    await watch._own({"type": "MODIFIED", "object": seen(8, generation=2)})  # changed while we wrote
    assert len(queue) == 1
    other = WorkQueue()
    await Watch(other, Store(), {KEY: 9}, lambda: None)._own({"type": "MODIFIED", "object": seen(10)})
    assert len(other) == 1, "somebody else's write is"


async def test_a_lists_next_page_waits_until_the_last_one_is_worked_on() -> None:
    queue = WorkQueue()
    watch = Watch(queue, Store(), {}, lambda: None)
    for n in range(1000):
        queue.add(Key("Inferlet", "ns", f"i{n}"))

    request: Any = SimpleNamespace(url=SimpleNamespace(query={"continue": "token"}))
    page: Any = object()

    async def answered(_: Any) -> Any:
        return page

    asking = asyncio.ensure_future(watch._unhurried(request, answered))
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
