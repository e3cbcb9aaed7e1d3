"""asyncio above the host: everything that programs expect of it."""

from __future__ import annotations

import asyncio
import contextvars
import time

import pytest

from inferlet import Context, errors, receive, send, synchronize
from inferlet._generated.abi import MAX_SUBMISSION_BYTES
from tests.sdk.host.harness import run, run_source
from tests.sdk.host.mini_host import MiniHost


def test_sleep_lasts_as_long_as_asked() -> None:
    async def main() -> float:
        start = time.monotonic()
        await asyncio.sleep(0.02)
        return time.monotonic() - start

    assert 0.02 <= run(MiniHost(), main) < 1


@pytest.mark.parametrize("start", ["", "asyncio.run(main())"])
def test_what_a_thread_does_is_awaited_outside_the_sandbox(start: str) -> None:
    source = f"""
import asyncio, time
from inferlet import send, synchronize
async def main():
    slow = asyncio.to_thread(lambda: time.sleep(0.02) or "slow")
    async with asyncio.timeout(5):
        words = [*await asyncio.gather(slow, asyncio.to_thread(str, 1)), await asyncio.to_thread(str, 2)]
        await synchronize()
    send(" ".join(words))
{start}
"""
    host = MiniHost()
    before = time.monotonic()
    run_source(host, source)
    assert time.monotonic() - before < 2
    assert host.sent == [b"slow 1 2"]


def test_a_timeout_cancels_what_takes_too_long() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await receive()
        await synchronize()

    run(MiniHost(), main)


def test_a_task_group_collects_and_cancels() -> None:
    async def main() -> list[str]:
        seen: list[str] = []

        async def fails() -> None:
            await synchronize()
            raise KeyError("x")

        async def waits() -> None:
            try:
                await receive()
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

        async def both() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(waits())
                group.create_task(fails())

        with pytest.raises(ExceptionGroup) as caught:
            await both()
        assert isinstance(caught.value.exceptions[0], KeyError)
        return seen

    assert run(MiniHost(), main) == ["cancelled"]


def test_queues_events_locks_and_contextvars_work() -> None:
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name")

    async def main() -> list[str]:
        queue: asyncio.Queue[str] = asyncio.Queue(1)
        lock, event = asyncio.Lock(), asyncio.Event()

        async def produce(who: str) -> None:
            name.set(who)
            await event.wait()
            async with lock:
                await synchronize()
                await queue.put(name.get())

        async with asyncio.TaskGroup() as group:
            for who in "abc":
                group.create_task(produce(who))
            event.set()
            return [await queue.get() for _ in "abc"]

    assert sorted(run(MiniHost(), main)) == ["a", "b", "c"]


def test_generation_and_messages_go_on_side_by_side() -> None:
    host = MiniHost(per_wait=3)

    async def main() -> str:
        ctx = Context()
        ctx.fill("abc")
        message = asyncio.create_task(receive_text())
        text = await ctx.generate_until(max_tokens=8)
        host.deliver(b"hi")
        return text + await message

    async def receive_text() -> str:
        return await receive()

    assert run(host, main).endswith("hi")


def test_a_busy_program_still_hears_answers() -> None:
    async def main() -> int:
        done = asyncio.ensure_future(synchronize())
        turns = 0
        while not done.done():
            await asyncio.sleep(0)
            turns += 1
        return turns

    assert run(MiniHost(), main) < 1000


def test_waiting_for_what_cannot_happen_is_an_error_that_names_the_place() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(errors.NothingToWaitFor) as caught:
        run(MiniHost(), main)
    assert any("main" in note and "test_loop.py" in note for note in caught.value.__notes__)


def test_left_over_tasks_are_cancelled_at_the_end() -> None:
    ended: list[str] = []

    async def main() -> None:
        async def background() -> None:
            try:
                await receive()
            finally:
                ended.append("cleaned")

        asyncio.create_task(background())  # noqa: RUF006 - the point of the test
        await synchronize()

    run(MiniHost(), main)
    assert ended == ["cleaned"]


def test_a_flood_of_tiny_records_leaves_in_submissions_that_the_host_takes() -> None:
    async def main() -> None:
        for _ in range(120_000):
            send(b"")

    host = MiniHost()
    run(host, main)
    assert len(host.sent) == 120_000
    assert max(map(len, host.submissions)) < MAX_SUBMISSION_BYTES // 8


def test_a_main_that_the_file_runs_itself_runs_once_and_has_its_result() -> None:
    host = MiniHost()
    source = """
import asyncio
from inferlet import synchronize
async def main():
    await synchronize()
    print("ran")
    return 7
if __name__ == "__main__":
    asyncio.run(main())
"""
    assert run_source(host, source) == "7"
    assert host.log[1] == b"ran\n"


def test_a_main_that_is_one_of_several_that_the_file_runs_has_its_own_result() -> None:
    source = """
import asyncio
async def before(): return 1
async def main(): return 2
asyncio.run(before())
asyncio.run(main())
asyncio.run(before())
"""
    assert run_source(MiniHost(), source) == "2"
    assert run_source(MiniHost(), source.replace("asyncio.run(main())", "")) is None
