"""Takes lists' objects and watches' events out of the API server's replies, on their way to kopf.

kopf decides what is listed and watched, from where, and when again. Each event that reaches it costs a task, two timers
and 0.3 ms, so none does: it reads lists that are empty, and bookmarks, which tell it from where to go on.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, cast

import aiohttp

_BOOKMARK: Final = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"%s"}}}'


async def take_list(reply: aiohttp.ClientResponse, take: Callable[[str, Mapping[str, Any]], None]) -> None:
    """Take the objects out of a page of a list; `take` is given the kind, which objects of the core API don't tell."""
    page = json.loads(await reply.content.read())
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

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """Whole lines, as they come."""
        rest = b""
        async for data in self._content.iter_chunked(size):
            *lines, rest = (rest + data).split(b"\n")
            left, taken = [], b""
            for line in filter(None, lines):
                version = self._take(line)
                if not version:
                    left.append(line)
                taken = version  # what is left has a version of its own, and it is newer
            if taken:
                await asyncio.sleep(0)  # the work first
                left.append(_BOOKMARK % taken)
            if left:
                yield b"\n".join(left) + b"\n"
        if rest:
            yield rest
