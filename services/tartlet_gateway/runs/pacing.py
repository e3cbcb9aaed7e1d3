"""Tells whoever writes a stream when nothing has come for a while, so that a comment can keep the connection open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")
_END: Final[Any] = object()


async def paced(source: AsyncIterator[T], wait_s: Callable[[], float]) -> AsyncGenerator[T | None, None]:
    """Yield what a source yields, and None each time that nothing has come for `wait_s()` seconds.

    The question for the next item stays open meanwhile: a generator that is cancelled would end. Close this generator
    to cancel that question.
    """
    coming = asyncio.ensure_future(anext(source, _END))
    try:
        while True:
            await asyncio.wait((coming,), timeout=wait_s())
            if not coming.done():
                yield None
                continue
            item = coming.result()
            if item is _END:
                return
            yield item
            coming = asyncio.ensure_future(anext(source, _END))
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
