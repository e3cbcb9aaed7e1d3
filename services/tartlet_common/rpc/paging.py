"""Pages of listings: how large a page is, and how a client reads all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from tartlet_common.errors.registry import InternalError

PAGE_BYTES: Final = 3 << 20
"""The size of the largest page; a message may have 4 MiB."""


def room(asked_bytes: int) -> int:
    """Return the size limit of a page whose request asks for `asked_bytes` (0: the request leaves it open)."""
    return min(asked_bytes, PAGE_BYTES) if asked_bytes else PAGE_BYTES


async def pages(ask: Callable[[str], Awaitable[Any]]) -> AsyncIterator[Any]:
    """Yield all pages of a listing; `ask` takes a page's token and returns the reply.

    Raises:
        InternalError: the server sends the same page again and again.
    """
    token = ""
    while True:
        reply = await ask(token)
        yield reply
        if not reply.next_page_token:
            return
        if reply.next_page_token == token:
            raise InternalError(detail="the server repeats a page of a listing")
        token = reply.next_page_token
