"""What of the watch's events becomes work."""

from __future__ import annotations

import asyncio
import contextlib
import json
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from yarl import URL

from tartlet_operator.api.meta import Key
from tartlet_operator.cluster import tap
from tartlet_operator.cluster.tap import Events
from tartlet_operator.machinery import watch as watch_module
from tartlet_operator.machinery.own_writes import Written
from tartlet_operator.machinery.store import InferletSeen, Store
from tartlet_operator.machinery.watch import Watch, slim
from tartlet_operator.machinery.work_queue import WorkQueue
from tests.operator.objects import body

KEY = Key("Inferlet", "ns", "i")
PAGE = {"kind": "InferletList", "metadata": {"resourceVersion": "9", "continue": "more"}}


def seen(version: int, name: str = "i") -> dict[str, Any]:
    made = body("Inferlet", name, {"source": {"inline": "pass"}}, {"observedGeneration": 1})
    made["metadata"] |= {"resourceVersion": str(version), "generation": 1, "managedFields": [{"manager": "m"}]}
    return made


def line(version: int, name: str = "i", kind: str = "MODIFIED") -> bytes:
    shown = json.dumps(seen(version, name), separators=(",", ":"), sort_keys=True)
    return f'{{"type":"{kind}","object":{shown}}}'.encode()  # as the API server orders them


class Content:
    """A stream that comes in pieces, then breaks, or stays silent for a while and ends."""

    def __init__(self, *lines: bytes, piece: int = 50, breaks: bool = False, silent_s: float = 0.0) -> None:
        self.data = b"".join(x + b"\n" for x in lines)
        self.piece = piece
        self.breaks = breaks
        self.until_s = asyncio.get_running_loop().time() + silent_s

    async def readany(self) -> bytes:
        data, self.data = self.data[:100_000], self.data[100_000:]
        return data

    async def read(self, _: int) -> bytes:
        data, self.data = self.data[: self.piece], self.data[self.piece :]
        if not data and self.breaks:
            raise ConnectionResetError
        if not data:
            await asyncio.sleep(self.until_s - asyncio.get_running_loop().time())
        return data


def asking(path: str = "/inferlets", **query: str) -> Any:
    return SimpleNamespace(url=URL(f"http://api{path}").with_query(query), headers={})


async def listed(watch: Watch, *items: dict[str, Any]) -> Any:
    """What kopf reads of a list."""
    content = Content(json.dumps({**PAGE, "items": items}).encode())

    async def answered(_: Any) -> Any:
        return SimpleNamespace(status=200, content=content)

    reply = await watch._between(asking(limit="250"), answered)
    return json.loads(await reply.content.read())


def watching() -> tuple[Watch, WorkQueue, Written]:
    queue, written = WorkQueue(), Written()
    return Watch(queue, Store(), written, lambda: None), queue, written


async def left_for_kopf(watch: Watch, content: Content) -> list[tuple[str, str]]:
    shown = b""
    with pytest.raises(ConnectionResetError) if content.breaks else contextlib.nullcontext():
        async for data in Events(content, partial(watch._event, "/inferlets")).iter_chunked(1 << 20):
            shown += data
    events = [json.loads(x) for x in shown.splitlines()]
    return [(e["type"], e["object"].get("metadata", {}).get("resourceVersion", "")) for e in events]


async def test_events_become_work_and_kopf_is_told_how_far_they_came() -> None:
    watch, queue, _ = watching()
    gone = json.dumps({"type": "ERROR", "object": {"kind": "Status", "code": 410}}).encode()
    mark = json.dumps({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "8"}}}).encode()
    lines = line(6, "a"), line(7, "b", "ADDED"), mark, line(9, "a", "DELETED"), gone
    assert await left_for_kopf(watch, Content(*lines, piece=1 << 20)) == [("BOOKMARK", "8"), ("ERROR", "")]
    assert queue._pending == {
        Key("Inferlet", "ns", "a"): None,  # to be asked for, and seen to be gone
        Key("Inferlet", "ns", "b"): slim(seen(7, "b")),
    }
    assert await left_for_kopf(watch, Content(line(10), line(11), piece=1 << 20)) == [("BOOKMARK", "11")]
    assert queue._pending[KEY] == slim(seen(11))
    in_pieces = await left_for_kopf(watch, Content(line(12), mark, line(13), gone))
    assert in_pieces == [("BOOKMARK", "8"), ("ERROR", "")], "12 needs none: theirs came after it"


@pytest.mark.parametrize("breaks", [False, True])
async def test_kopf_is_told_how_far_a_watch_came_when_it_ends_or_breaks_and_now_and_then(
    breaks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [line(version, f"i{version}") for version in (6, 7, 8, 9)]
    one_by_one = partial(Content, *lines, piece=len(lines[0]) + 1, breaks=breaks)
    assert await left_for_kopf(watching()[0], one_by_one()) == [("BOOKMARK", "9")]
    cut_off = one_by_one()
    cut_off.data = cut_off.data[:-40]  # what was cut off will come again
    assert await left_for_kopf(watching()[0], cut_off) == [("BOOKMARK", "8")]
    monkeypatch.setattr(tap, "_BOOKMARK_S", 0.0)
    told = await left_for_kopf(watching()[0], one_by_one())
    assert told == [("BOOKMARK", str(version)) for version in (6, 7, 8, 9)]


async def test_kopf_is_told_how_far_a_watch_came_that_then_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tap, "_QUIET_S", 0.05)
    quiet = Events(Content(line(6), line(7), silent_s=60.0), partial(watching()[0]._event, "/inferlets"))
    stream = quiet.iter_chunked(1 << 20)
    async with asyncio.timeout(5):
        told = json.loads(await anext(stream))
    assert told["object"]["metadata"]["resourceVersion"] == "7"
    with pytest.raises(TimeoutError):  # once: it is still as far
        await asyncio.wait_for(anext(stream), 0.5)


async def test_what_a_broken_watch_shows_again_is_no_news_and_a_list_is() -> None:
    watch, queue, _ = watching()
    await left_for_kopf(watch, Content(line(6), line(7, kind="DELETED"), line(8, "b")))
    queue._pending.clear()
    again = Content(line(6), line(7, kind="DELETED"), line(8, "b"), line(9, "c"), line(10, kind="ADDED"))
    assert await left_for_kopf(watch, again) == [("BOOKMARK", "10")]
    assert [key.name for key in queue._pending] == ["c", "i"]
    await listed(watch, seen(3, "a"))  # of an API server that was set back
    await left_for_kopf(watch, Content(line(5, "d")))
    assert [key.name for key in queue._pending] == ["c", "i", "a", "d"]


async def test_our_own_last_write_is_no_news_unless_the_spec_is_newer() -> None:
    watch, queue, written = watching()
    written.wrote(KEY, 7, alone=True)
    written.wrote(Key("Inferlet", "ns", "changed"), 9, alone=False)  # its spec changed while we wrote
    lines = [line(version, f"i{version}") for version in (6, 7, 8, 9)]
    assert await left_for_kopf(watch, Content(*lines)) == [("BOOKMARK", "9")]
    assert [key.name for key in queue._pending] == ["i6", "i8", "i9"]
    again = Content(line(7), line(7), line(7))  # a watch that broke shows it once more
    assert await left_for_kopf(watch, again) == [("BOOKMARK", "7")]
    assert KEY not in queue._pending


async def test_a_bookmark_that_has_our_own_last_writes_version_is_for_kopf() -> None:
    watch, _, written = watching()
    written.wrote(KEY, 7, alone=True)
    mark = b'{"type":"BOOKMARK","object":{"kind":"Inferlet","metadata":{"resourceVersion":"7"}}}'
    assert await left_for_kopf(watch, Content(line(7), mark, piece=1 << 20, breaks=True)) == [("BOOKMARK", "7")]
    assert await left_for_kopf(watch, Content(mark, mark)) == [("BOOKMARK", "7")] * 2, "else a quiet watch looks broken"


async def test_a_lists_objects_become_work_and_kopf_reads_the_rest_of_it() -> None:
    watch, queue, _ = watching()
    assert await listed(watch, seen(3, "a"), seen(4, "b")) == {**PAGE, "items": []}
    assert queue._pending == {Key("Inferlet", "ns", name): slim(seen(n, name)) for n, name in ((3, "a"), (4, "b"))}


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
    forged = seen(11)
    forged["metadata"]["annotations"] = {"resourceVersion": "10"}
    shown = json.dumps(forged, separators=(",", ":"), sort_keys=True)
    assert not written.echoed(f'{{"type":"MODIFIED","object":{shown}}}'.encode()), "it may be another's"


async def test_of_config_maps_the_metadata_alone_is_asked_for() -> None:
    queue, store = WorkQueue(), Store()
    store.inferlets[KEY] = InferletSeen("", "", "", "sources", ready=False, runnable=False)
    watch = Watch(queue, store, Written(), lambda: None)
    page = {"kind": "PartialObjectMetadataList", "metadata": {"resourceVersion": "9"}}
    items = [{"metadata": {"namespace": "ns", "name": name, "resourceVersion": "3"}} for name in ("others", "sources")]
    content = Content(json.dumps({**page, "items": items}).encode())

    async def answered(_: Any) -> Any:
        return SimpleNamespace(status=200, content=content)

    request = asking("/api/v1/configmaps", limit="100")
    await watch._between(request, answered)
    assert "as=PartialObjectMetadataList" in request.headers["Accept"]
    assert list(queue._pending) == [KEY]


async def test_a_list_whose_continuation_has_expired_begins_again() -> None:
    watch, queue, _ = watching()
    asked: list[bool] = []

    async def answered(request: Any) -> Any:
        asked.append("continue" in request.url.query)
        if asked[-1]:
            return SimpleNamespace(status=410, release=lambda: None)
        return SimpleNamespace(status=200, content=Content(json.dumps({**PAGE, "items": [seen(3, "a")]}).encode()))

    reply = await watch._between(asking(limit="250", **{"continue": "old"}), answered)
    assert (reply.status, asked) == (200, [True, False])
    assert [key.name for key in queue._pending] == ["a"]


@pytest.mark.parametrize("status", [403, 404, 429, 503])
async def test_what_is_refused_for_now_is_asked_for_again(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "_FIRST_PAUSE_S", 0.01)
    replies = [SimpleNamespace(status=status, reason="", release=lambda: None)] * 2
    replies.append(SimpleNamespace(status=200, content=Content()))

    async def answered(_: Any) -> Any:
        return replies.pop(0)

    reply = await watching()[0]._between(asking(watch="true"), answered)
    assert (reply.status, replies) == (200, [])


async def test_what_becomes_of_a_pools_deployment_is_looked_at_whatever_its_label_says() -> None:
    watch, queue, _ = watching()
    owner = {"kind": "EnginePool", "name": "p", "controller": True}
    meta = {"namespace": "ns", "name": "p", "labels": {"tartlet.dev/pool": "other"}, "ownerReferences": [owner]}
    watch._seen("Deployment", {"metadata": meta})
    assert queue._pending.keys() == {Key("EnginePool", "ns", "p"), Key("EnginePool", "ns", "other")}


async def test_a_lists_next_page_waits_until_the_last_one_is_worked_on() -> None:
    watch, queue, _ = watching()
    for n in range(1000):
        queue.add(Key("Inferlet", "ns", f"i{n}"))

    page: Any = SimpleNamespace(status=403)

    async def answered(_: Any) -> Any:
        return page

    next_page = asyncio.ensure_future(watch._between(asking(**{"continue": "token"}), answered))
    await asyncio.sleep(0.05)
    assert not next_page.done()

    async def handled(key: Key, _: Any) -> None:
        return None

    worker = asyncio.ensure_future(queue.work("Inferlet", handled))
    assert await asyncio.wait_for(next_page, 5) is page
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)


async def test_what_may_not_be_read_for_a_while_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A namespace without its role, say: kopf would end all watches, those of other namespaces too."""
    monkeypatch.setattr("tartlet_operator.machinery.watch._FIRST_PAUSE_S", 0.01)
    watch, queue, _ = watching()
    content = Content(json.dumps({**PAGE, "items": [seen(3)]}).encode())
    answers = [SimpleNamespace(status=s, reason="", release=lambda: None, content=content) for s in (403, 404, 200)]

    async def answered(_: Any) -> Any:
        return answers.pop(0)

    reply = await asyncio.wait_for(watch._between(asking(limit="250"), answered), 5)
    assert reply.status == 200
    assert list(queue._pending) == [KEY]
    answers.append(SimpleNamespace(status=404, reason="", release=lambda: None, content=content))
    assert (await watch._between(asking("/apis"), answered)).status == 404, "what is no list is kopf's affair"


def test_a_body_is_kept_without_what_nobody_reads() -> None:
    kept = slim(seen(3))
    assert set(kept["metadata"]) == {"name", "namespace", "uid", "generation", "resourceVersion"}
    assert set(kept) == {"apiVersion", "kind", "metadata", "spec", "status"}


async def test_large_objects_come_few_at_a_time_and_wait_without_their_bodies() -> None:
    watch, queue, _ = watching()
    limits: list[int] = []
    large = [body("Inferlet", f"i{n}", {"source": {"inline": "x" * 1_000_000}}) for n in range(30)]
    left = large[:]

    async def answered(request: Any) -> Any:
        limit = int(request.url.query["limit"])
        limits.append(limit)
        content = Content(json.dumps({**PAGE, "items": left[:limit]}).encode())
        return SimpleNamespace(status=200, content=content, close=lambda: None)

    while left:
        request = asking(limit="100")
        await watch._between(request, answered)
        del left[: int(request.url.query["limit"])]
    assert limits == [100, 12, *[1] * 30]
    assert queue._pending == {Key("Inferlet", "ns", f"i{n}"): None for n in range(30)}
    limits.clear()
    for n in range(10):
        left[:] = [seen(n)]
        await watch._between(asking(limit="100"), answered)
    assert limits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 500], "small ones come many at a time again"


async def test_a_heavy_body_takes_the_place_of_a_light_one_that_waits() -> None:
    watch, queue, _ = watching()
    heavy = seen(7)
    heavy["spec"]["source"]["inline"] = "\U0001f600" * 20_000
    await listed(watch, seen(6), heavy)
    assert queue._pending == {KEY: None}
