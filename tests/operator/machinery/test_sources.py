"""Sources from URLs: which hosts are allowed, and how often they are asked."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from tartlet_operator.api.inferlet import Source, UrlSource
from tartlet_operator.api.reasons import Reason
from tartlet_operator.egress import session
from tartlet_operator.machinery import sources
from tartlet_operator.machinery.sources import SourceFetcher, SourceProblem, StillFetching, allowed


class WebServer:
    """A web server that answers when the test lets it, and counts requests."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.files: dict[str, bytes] = {}
        self.port = 0
        self.asked = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    def source(self, name: str, data: bytes = b"") -> Source:
        self.files[name] = data or self.data
        digest = f"sha256:{hashlib.sha256(self.files[name]).hexdigest()}"
        return Source(url=UrlSource(url=f"http://127.0.0.1:{self.port}/{name}", digest=digest))

    async def answer(self, request: web.Request) -> web.Response:
        self.asked += 1
        await self.may_answer.wait()
        return web.Response(body=self.files[request.path[1:]])


@contextlib.asynccontextmanager
async def serving(data: bytes) -> AsyncIterator[WebServer]:
    server, app = WebServer(data), web.Application()
    app.router.add_get("/{name}", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server.port = runner.addresses[0][1]
        yield server
    finally:
        await runner.cleanup()


async def fetched(fetcher: SourceFetcher, source: Source) -> bytes:
    """Fetch as an Inferlet does: again when the download has ended."""
    while True:
        try:
            return await fetcher.fetch(source, "ns")
        except StillFetching as still:
            await still.coming


def test_no_host_is_allowed_unless_named() -> None:
    assert not allowed("https://example.org/a", [])
    assert allowed("https://Example.org/a", ["example.org"])
    assert not allowed("https://example.org.evil.net/a", ["example.org"])
    assert allowed("http://127.0.0.1:8000/a", ["127.0.0.1:8000"])
    assert not allowed("http://127.0.0.1:8001/a", ["127.0.0.1:8000"])
    for host in ("127.0.0.1:x@evil.net", "evil.net%2f.example.org", "evil.net\\@ok.example.org"):
        assert not allowed(f"http://{host}/a", ["127.0.0.1:*", "*.example.org"]), host


async def test_an_unreachable_url_gives_a_readable_message(monkeypatch: pytest.MonkeyPatch) -> None:
    async def told(url: str) -> str:
        source = UrlSource(url=url, digest="sha256:" + "0" * 64)
        fetcher = SourceFetcher(None, "127.0.0.1:*", "127.0.0.1")  # type: ignore[arg-type]
        with pytest.raises(SourceProblem) as problem:
            await fetched(fetcher, Source(url=source))
        await fetcher.close()
        assert (problem.value.reason, problem.value.retry) == (Reason.FETCH_FAILED, True)
        return problem.value.message

    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unheard.getsockname()[1]}/a.py"
        refused = await told(url)
    assert refused.startswith(f"spec.source.url.url: {url} can't be fetched: Cannot connect to host 127.0.0.1:")
    assert "ConnectionKey" not in refused
    monkeypatch.setattr(session, "_TIMEOUT", aiohttp.ClientTimeout(total=0.01))
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        late = await told(f"http://127.0.0.1:{silent.getsockname()[1]}/a.py")
    assert "can't be fetched: TimeoutError: check" in late


async def test_a_slow_source_is_fetched_once_and_blocks_no_worker() -> None:
    async with serving(b"pass") as web_server:
        web_server.may_answer.clear()
        fetcher, source = SourceFetcher(None, "127.0.0.1:*", "127.0.0.1"), web_server.source("a.py")  # type: ignore[arg-type]
        for _ in range(2):
            with pytest.raises(StillFetching) as still:
                await fetcher.fetch(source, "ns")
        web_server.may_answer.set()
        await still.value.coming
        assert await asyncio.gather(*(fetcher.fetch(source, "ns") for _ in range(3))) == [b"pass"] * 3
        assert (web_server.asked, fetcher._size, fetcher._untaken) == (1, 4, {}), "kept once"
        await fetcher.close()


async def test_who_comes_late_hears_what_was_wrong_and_a_corrected_digest_needs_no_other_download(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(b"pass") as web_server:
        fetcher, right = SourceFetcher(None, "127.0.0.1:*", "127.0.0.1"), web_server.source("a.py")  # type: ignore[arg-type]
        assert right.url is not None
        wrong = Source(url=UrlSource(url=right.url.url, digest="sha256:" + "0" * 64))
        for _ in range(3):
            with pytest.raises(SourceProblem, match=right.url.digest) as problem:
                await fetched(fetcher, wrong)
            assert (problem.value.reason, problem.value.retry) == (Reason.DIGEST_MISMATCH, True)
        assert await fetcher.fetch(right, "ns") == b"pass"
        assert web_server.asked == 1
        monkeypatch.setattr(sources, "_KNOWN_S", 0.0)
        with pytest.raises(StillFetching) as still:
            await fetcher.fetch(wrong, "ns")
        await still.value.coming
        assert (web_server.asked, len(fetcher._failed)) == (2, 1)
        await fetcher.close()


async def test_what_has_come_stays_until_it_is_taken_or_nobody_comes_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_KEPT_BYTES", 10)
    async with serving(b"pass") as web_server:
        fetcher = SourceFetcher(None, "127.0.0.1:*", "127.0.0.1")  # type: ignore[arg-type]
        all_of_them = [web_server.source(f"{n}.py", f"#{n}\n".encode()) for n in range(9)]
        coming = []
        for source in all_of_them:
            with pytest.raises(StillFetching) as still:
                await fetcher.fetch(source, "ns")
            coming.append(still.value.coming)
        taken: list[bytes] = []
        while coming:  # each is looked for when it has come, by somebody with much to do
            done, _ = await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0.02)
            for n, task in enumerate(coming):
                if task in done:
                    taken.append(await fetcher.fetch(all_of_them[n], "ns"))
            all_of_them = [s for n, s in enumerate(all_of_them) if coming[n] not in done]
            coming = [task for task in coming if task not in done]
        assert len(taken) == web_server.asked == 9
        monkeypatch.setattr(sources, "_TAKEN_S", 0.01)
        for n in range(9):  # Inferlets that were deleted meanwhile
            with pytest.raises(StillFetching) as still:
                await fetcher.fetch(web_server.source(f"gone{n}.py", f"~{n}\n".encode()), "ns")
            await still.value.coming
        assert fetcher._size <= 10
        await fetcher.close()


async def test_an_invalid_address_is_reported() -> None:
    assert not allowed("https://[abc/x.py", ["*"])
    source = UrlSource(url="https://[abc/x.py", digest="sha256:" + "0" * 64)
    with pytest.raises(SourceProblem, match=r"spec.source.url.url"):
        await fetched(SourceFetcher(None, "*", "*"), Source(url=source))  # type: ignore[arg-type]
