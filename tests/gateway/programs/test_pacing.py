"""What comes late comes whole, silence is told, and whoever stops listening leaves no question open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from tartlet_gateway.runs.pacing import paced


async def test_a_source_that_is_silent_goes_on_and_ends_with_its_reader() -> None:
    go_on, cancelled = asyncio.Event(), asyncio.Event()

    async def source() -> AsyncGenerator[int, None]:
        yield 1
        await go_on.wait()
        yield 2
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    heard: list[int | None] = []
    async with asyncio.timeout(10), aclosing(paced(source(), lambda: 0.01)) as items:
        async for item in items:
            heard.append(item)
            if heard.count(None) == 2:
                go_on.set()
            if 2 in heard and item is None:
                break
    assert [item for item in heard if item is not None] == [1, 2]
    assert cancelled.is_set()


async def test_the_source_s_error_and_its_end_reach_the_reader() -> None:
    async def source() -> AsyncGenerator[int, None]:
        yield 1
        raise KeyError("broken")

    with pytest.raises(KeyError):
        [item async for item in paced(source(), lambda: 10.0)]

    async def empty() -> AsyncGenerator[int, None]:
        for never in list[int]():
            yield never

    assert [item async for item in paced(empty(), lambda: 10.0)] == []
