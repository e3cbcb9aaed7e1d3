"""Pages of listings: how large one is, and following them to the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from tartlet_common.errors.registry import InternalError

PAGE_BYTES: Final = 3 << 20
"""Largest page; a message may have 4 MiB."""


def room(asked_bytes: int) -> int:
    """How large a page becomes whose request asks for so many bytes (0: it doesn't say)."""
    return min(asked_bytes, PAGE_BYTES) if asked_bytes else PAGE_BYTES


async def pages(ask: Callable[[str], Awaitable[Any]]) -> AsyncIterator[Any]:
    """All pages of a listing; `ask` gets a page's token and answers with the reply.

    Raises:
        InternalError: the server sends the same page for ever.
    """
    token = ""
    while True:
        reply = await ask(token)
        yield reply
        if not reply.next_page_token:
            return
        if reply.next_page_token == token:
            raise InternalError(detail="a listing doesn't come to its end")
        token = reply.next_page_token
