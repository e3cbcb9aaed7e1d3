"""Messages of a program that waits for them now and then, in several tasks, or no more."""

from __future__ import annotations

import asyncio

import pytest

from inferlet import errors, receive, receive_bytes, synchronize
from tartlet_common.abi import Op
from tartlet_common.errors.registry import TooManyCommands
from tests.sdk.host.harness import run
from tests.sdk.host.mini_host import MiniHost


async def looked() -> str:
    """The next message, or what is said where none comes."""
    try:
        async with asyncio.timeout(0.001):
            return await receive()
    except TimeoutError:
        return "nobody"


def test_a_message_that_comes_after_a_timeout_is_the_next_ones() -> None:
    host = MiniHost()

    async def main() -> list[str]:
        seen = [await looked(), await looked()]
        for message in (b"first", b"second", b"third"):
            host.deliver(message)
        await synchronize()
        return [*seen, await receive(), (await receive_bytes()).decode(), await receive(), await looked()]

    assert run(host, main) == ["nobody", "nobody", "first", "second", "third", "nobody"]


def test_looking_often_asks_the_host_once() -> None:
    host = MiniHost()

    async def main() -> None:
        waiting = [asyncio.create_task(looked()) for _ in range(3)]
        await asyncio.gather(*waiting)
        for _ in range(200):
            receive().cancel()
            await asyncio.sleep(0)
        host.deliver(b"a")
        assert await receive() == "a"

    run(host, main)
    assert host.ops.count(Op.RECEIVE) == 3


def test_those_who_wait_get_messages_in_their_order_whoever_leaves() -> None:
    host = MiniHost()

    async def main() -> list[str]:
        tasks = [asyncio.create_task(one()) for _ in range(4)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        tasks[2].cancel()
        for message in (b"a", b"b", b"c"):
            host.deliver(message)
        return [await tasks[1], await tasks[3], await receive()]

    async def one() -> str:
        return await receive()

    assert run(host, main) == ["a", "b", "c"]


def test_a_message_that_comes_as_its_task_is_cancelled_is_the_next_ones() -> None:
    host = MiniHost()

    async def main() -> list[str]:
        async def one() -> str:
            return await receive()

        task = asyncio.create_task(one())
        await asyncio.sleep(0)
        host.deliver(b"a")
        host.deliver(b"b")
        while not task._fut_waiter.done():  # type: ignore[attr-defined]  # it has come, and the task had no turn yet
            asyncio.get_running_loop()._selector.select(0.0)  # type: ignore[attr-defined]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return [await receive(), await receive()]

    assert run(host, main) == ["a", "b"]


def test_who_looked_once_and_then_waits_for_nothing_is_told() -> None:
    async def main() -> None:
        await looked()
        await asyncio.Event().wait()

    with pytest.raises(errors.NothingToWaitFor):
        run(MiniHost(), main)


def test_a_refusal_is_the_last_ones_who_asked() -> None:
    host = MiniHost()

    async def main() -> tuple[str, str]:
        first = receive()
        await synchronize()
        host.refused = TooManyCommands(in_flight=1, limit=1)
        with pytest.raises(errors.TooManyCommands):
            await receive()
        host.deliver(b"a")
        host.refused = None
        last = receive()
        host.deliver(b"b")
        return await first, await last

    assert run(host, main) == ("a", "b")
