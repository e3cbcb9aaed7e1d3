"""When the engine's thread hands results over: while the device computes, or as nothing else waits."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from tartlet_common.engine import step_codec
from tartlet_common.engine.step import Step, StepResult
from tartlet_worker.fake import FakeEngine, FakeOptions
from tartlet_worker.serving.engine_thread import EngineThread, Finished
from tests.worker.steps import embed, forward, fwd

TIMED = FakeOptions(page_size=4, num_pages=4, num_embeds=8, num_slots=4, step_s=1e-9, break_token=200)


class Events(list[str]):
    """What happened, by whichever thread; `until` waits for one."""

    async def until(self, event: str) -> None:
        async with asyncio.timeout(10):
            while event not in self:  # noqa: ASYNC110 - another thread appends
                await asyncio.sleep(0.001)


class Computing:
    """A device that computes until it is told to end, step by step."""

    def __init__(self, events: Events) -> None:
        self.may_end, self._events = threading.Semaphore(0), events

    def __call__(self, _: float) -> None:
        self._events.append("computes")
        assert self.may_end.acquire(timeout=10)
        self._events.append("computed")


class Rig:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, options: FakeOptions = TIMED) -> None:
        self.events = Events()
        self.device = Computing(self.events)
        self.engine = FakeEngine(options, self.device)
        step, reset, loop = self.engine.step, self.engine.reset, asyncio.get_running_loop()
        told = loop.call_soon_threadsafe

        def tell(callback: Any, *args: Any) -> Any:  # as the engine's thread calls it: the loop itself runs later
            if args and isinstance(args[0], Finished):
                report = args[0]
                self.events.append("broken" if report.broken else f"told {report.result and report.result.number}")
            return told(callback, *args)

        def begin(what: Step, *how: Any) -> StepResult:
            self.events.append(f"begins {what.number}")
            return step(what, *how)

        def forget(keep: Sequence[int]) -> None:
            self.events.append("reset")
            reset(keep)

        monkeypatch.setattr(self.engine, "step", begin)
        monkeypatch.setattr(loop, "call_soon_threadsafe", tell)
        monkeypatch.setattr(self.engine, "reset", forget)
        self.thread = EngineThread(self.engine, loop, lambda _: None)

    def submit(self, number: int, token: int = 65) -> None:
        step = Step(number, (embed((0, [0], [token], [0])), forward(fwd(0, [], [0], [0], [1]))))
        self.thread.submit(1, step_codec.step_to_proto(step))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self.thread.start()
        try:
            yield
        finally:
            for _ in range(8):
                self.device.may_end.release()
            await self.thread.stop()


async def test_a_result_is_handed_over_when_the_next_step_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    rig.submit(1)
    rig.submit(2)
    async with rig.running():
        await rig.events.until("computes")
        rig.device.may_end.release()
        await rig.events.until("told 1")  # the second computes on: nobody lets it end
        rig.device.may_end.release()
        await rig.events.until("told 2")  # nothing waits any more
    first = ["begins 1", "computes", "computed"]
    assert rig.events == [*first, "begins 2", "told 1", "computes", "computed", "told 2"]


async def test_no_result_waits_for_a_step_that_computes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, FakeOptions(page_size=4, num_pages=4, num_embeds=8, num_slots=4))
    for number in (1, 2, 3):
        rig.submit(number)
    async with rig.running():
        await rig.events.until("told 3")
    assert rig.events == ["begins 1", "begins 2", "told 1", "begins 3", "told 2", "told 3"]


async def test_results_come_before_a_reset_and_before_the_engine_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    rig.submit(1)
    rig.thread.reset()
    rig.submit(2)
    rig.submit(3, token=200)
    rig.submit(4)
    async with rig.running():
        rig.device.may_end.release(2)
        await rig.events.until("broken")
    first = ["begins 1", "computes", "computed", "told 1", "reset"]
    assert rig.events == [*first, "begins 2", "computes", "computed", "begins 3", "told 2", "broken"]


async def test_the_last_result_comes_when_the_thread_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    rig.submit(1)
    async with rig.running():
        await rig.events.until("computes")
        ending = asyncio.ensure_future(rig.thread.stop())
        await asyncio.sleep(0.02)
        rig.device.may_end.release()
        await ending
        assert rig.events == ["begins 1", "computes", "computed", "told 1"]


@pytest.mark.parametrize("between", ["reset", "afterwards"])
async def test_what_breaks_the_engine_between_two_steps_is_told(monkeypatch: pytest.MonkeyPatch, between: str) -> None:
    rig = Rig(monkeypatch)

    def fail(*_: Any) -> None:
        raise RuntimeError("the device failed")

    monkeypatch.setattr(rig.engine, "reset", fail)
    rig.thread.reset() if between == "reset" else rig.thread.afterwards(fail)
    rig.submit(1)
    async with rig.running():
        await rig.events.until("broken")
    assert rig.events == ["broken"]
