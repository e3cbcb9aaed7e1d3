"""Takes lists' objects and watches' events out of the API server's replies, on their way to kopf.

kopf decides what is listed and watched, from where, and when again. Each event that reaches it costs a task, two timers
and 0.3 ms, so none does: it reads lists that are empty, and now and then a bookmark, to know from where to go on.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Final, cast

import aiohttp

from tartlet_operator.cluster.json_text import decoded

_BOOKMARK: Final = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"%s"}}}\n'
_BOOKMARK_S: Final = 30.0
"""Between bookmarks of ours while a watch lasts: kopf takes one that is silent for 70 s for broken."""
_QUIET_S: Final = 10.0
"""After so long without an event kopf is told how far the watch came: the API server's own bookmarks tell nothing of
what a watch began with, so a quiet one that kopf begins anew would show that again each time."""


async def read(reply: aiohttp.ClientResponse, most: int) -> bytes | None:
    """A reply's body; None if it has more bytes."""
    parts, size = [], 0
    while data := await reply.content.readany():
        parts.append(data)
        size += len(data)
        if size > most:
            return None
    return b"".join(parts)


def take_list(reply: aiohttp.ClientResponse, data: bytes, take: Callable[[str, Mapping[str, Any]], None]) -> None:
    """Take the objects out of a page of a list; `take` is given the kind, which objects of the core API don't tell."""
    page = decoded(data)
    kind = page["kind"].removesuffix("List")
    for body in page.get("items") or ():
        take(kind, body)
    reply.content = cast("aiohttp.StreamReader", _Page(reply.content, json.dumps({**page, "items": []}).encode()))


def take_events(reply: aiohttp.ClientResponse, take: Callable[[bytes], bytes]) -> None:
    """Take the events out of a watch as they come.

    Args:
        reply: to the watch's request.
        take: called with a line; the resource version up to which it brought the watch, empty if it is for kopf.
    """
    reply.content = cast("aiohttp.StreamReader", Events(reply.content, take))


class _Content:
    """A reply's content, read in another way; all else is its own affair."""

    def __init__(self, content: Any) -> None:
        self._content = content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)


class _Page(_Content):
    def __init__(self, content: Any, data: bytes) -> None:
        super().__init__(content)
        self._data = data

    async def read(self) -> bytes:
        return self._data


class Events(_Content):
    """A watch's stream without what was taken. A bookmark stands for that, so that a broken watch goes on behind it."""

    def __init__(self, content: Any, take: Callable[[bytes], bytes]) -> None:
        super().__init__(content)
        self._take = take
        self._taken = b""  # the newest version that was taken, until kopf is told

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """Whole lines, as they come."""
        now = asyncio.get_running_loop().time
        rest, told_s = b"", now()
        try:
            while (data := await self._read(size)) != b"":
                *lines, rest = (rest + (data or b"")).split(b"\n")
                left = self._left(lines)
                if self._taken and (data is None or now() - told_s >= _BOOKMARK_S):
                    left += self._bookmark()
                if left:
                    told_s = now()
                    yield left
        except Exception:  # the watch broke
            if self._taken:
                yield self._bookmark()
            raise
        if self._taken:  # a line that was cut off comes again, whole, in the next watch
            yield self._bookmark()

    async def _read(self, size: int) -> bytes | None:
        """What has come, empty at the end; None: there is something to tell kopf, and nothing came for a while."""
        try:
            async with asyncio.timeout(_QUIET_S if self._taken else None) as quiet:
                return cast("bytes", await self._content.read(size))
        except TimeoutError:
            if quiet.expired():
                return None
            raise

    def _left(self, lines: Iterable[bytes]) -> bytes:
        """What is for kopf."""
        left = b""
        for line in filter(None, lines):
            version = self._take(line)
            if not version:
                left += line + b"\n"
            self._taken = version  # what is left has a version of its own, and it is newer
        return left

    def _bookmark(self) -> bytes:
        taken, self._taken = self._taken, b""
        return _BOOKMARK % taken
