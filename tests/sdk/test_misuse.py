"""What can't be meant is refused where it is written, with what to write instead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from inferlet import Context, create_queue, errors, send, synchronize
from tests.sdk.harness import held, run, tokens_of
from tests.sdk.mini_host import MiniHost
from tests.sdk.mini_model import reference_generate

SECONDS: dict[str, Callable[[Context], Any]] = {
    "generate": lambda ctx: ctx.generate(max_tokens=3),
    "fill": lambda ctx: ctx.fill("more"),
    "fill_tokens": lambda ctx: ctx.fill_tokens([1]),
    "chat": lambda ctx: ctx.chat("more"),
    "fork": lambda ctx: ctx.fork(),
}


def text_of(prompt: str, n: int) -> str:
    return bytes(reference_generate(tokens_of(prompt), n)).decode(errors="replace")


@pytest.mark.parametrize("second", SECONDS)
@pytest.mark.parametrize("turns", [1, 2, 7, 30])
@pytest.mark.parametrize("per_wait", [1, 100])
def test_what_begins_while_a_task_generates_is_refused_and_the_task_goes_on(
    second: str, turns: int, per_wait: int
) -> None:
    async def main() -> str:
        async with Context() as ctx:
            ctx.fill("Hello")
            first = asyncio.create_task(ctx.generate_until(max_tokens=50))
            for _ in range(turns):
                await asyncio.sleep(0)
            with pytest.raises(errors.InvalidArgument, match="it generates already: fork it"):
                SECONDS[second](ctx)
            return await first

    host = MiniHost(per_wait=per_wait)
    assert run(host, main) == text_of("Hello", 50)
    assert held(host) == (0, 0, 0)


def test_two_generations_at_once_never_end_in_silence() -> None:
    """Also where the second begins just when the first's token is there and its task has not gone on yet."""

    async def main(wait: int) -> tuple[Any, Any]:
        async with Context() as ctx, asyncio.timeout(5):
            ctx.fill("Hello")
            queue = create_queue()

            async def late() -> str:
                for _ in range(wait):
                    await synchronize(queue)
                return await ctx.generate_until(max_tokens=3)

            return await asyncio.gather(ctx.generate_until(max_tokens=8), late(), return_exceptions=True)

    whole = text_of("Hello", 8)
    told = set()
    for wait in range(1, 12):
        for per_wait in (1, 2, 3, 5):
            first, second = run(MiniHost(per_wait=per_wait), lambda wait=wait: main(wait))  # type: ignore[misc]
            refused = [isinstance(result, errors.InvalidArgument) for result in (first, second)]
            assert any(refused) or first == whole
            assert first == whole or refused[0]
            told.add(tuple(refused))
    assert told == {(False, True), (True, False), (False, False)}


def test_a_loop_that_was_left_or_cancelled_makes_way() -> None:
    async def main() -> None:
        async with Context() as ctx:
            ctx.fill("Hello")
            async for _ in ctx.generate(max_tokens=50):
                ctx.fill("!")
                break
            task = asyncio.create_task(ctx.generate_until(max_tokens=50))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            ctx.generate(max_tokens=50)
            assert len(await ctx.generate_until(max_tokens=5)) > 0

    run(MiniHost(), main)


@pytest.mark.parametrize("message", [3, None, ["a"], {"a": 1}, 2.5])
def test_a_message_is_text_or_bytes(message: Any) -> None:
    async def main() -> None:
        with pytest.raises(TypeError, match="send takes a str or bytes, not "):
            send(message)
        for sent in ("a", b"b", bytearray(b"c"), memoryview(b"d")):
            send(sent)  # type: ignore[arg-type]

    host = MiniHost()
    run(host, main)
    assert host.sent == [b"a", b"b", b"c", b"d"]
