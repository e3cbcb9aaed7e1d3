"""The engine's thread gives an engine the next step early, and reports each step in its turn; on the CPU."""

from __future__ import annotations

import asyncio

from tartlet_common.engine import step_codec
from tartlet_common.engine.step import Step
from tartlet_common.errors.registry import EngineFailure, MalformedSubmission
from tartlet_worker.serving.engine_thread import EngineThread, Finished
from tartlet_worker.torch_engine.engine import TorchEngine
from tests.worker.graphs.decode_streams import compare
from tests.worker.graphs.late_device import device_of
from tests.worker.graphs.test_two_in_flight import decoding, plain, recorded


class Reports:
    """An engine's thread, and what it reports."""

    def __init__(self, engine: TorchEngine) -> None:
        self.told: list[Finished] = []
        self.thread = EngineThread(engine, asyncio.get_running_loop(), self.told.append)

    def submit(self, step: Step) -> None:
        self.thread.submit(1, step_codec.step_to_proto(step))

    async def until(self, count: int) -> list[Finished]:
        async with asyncio.timeout(30):
            while len(self.told) < count:  # noqa: ASYNC110 - another thread appends
                await asyncio.sleep(0.005)
        await self.thread.stop()
        return self.told


async def test_the_engines_thread_gives_the_next_step_early() -> None:
    steps, one = decoding(6), plain("llama3-grouped")
    want = [one.step(step) for step in steps]
    rig = recorded("llama3-grouped")
    with device_of(rig.engine) as device:
        device.polls = 3
        reports = Reports(rig.engine)
        for step in steps[:4]:
            reports.submit(step)
        reports.thread.afterwards(lambda: None)  # between two steps, so the second one isn't given early
        for step in steps[4:]:
            reports.submit(step)
        reports.thread.start()
        told = await reports.until(7)
    compare([step_codec.result_from_proto(report.result) for report in told if report.result is not None], want)
    assert [ahead.rows.position[0] for ahead in rig.ahead] == [6, 7, 8, 10, 11]


async def test_the_thread_reports_an_error_for_the_step_that_failed() -> None:
    steps, rig = decoding(4), recorded("llama3-grouped")
    with device_of(rig.engine) as device:
        device.breaks_at = 3
        reports = Reports(rig.engine)
        for step in steps:
            reports.submit(step)
        reports.thread.start()
        told = await reports.until(3)
    assert [report.result.number if report.result is not None else 0 for report in told] == [1, 2, 0]
    assert isinstance(told[2].broken, EngineFailure)
    assert len(rig.ahead) == 3, "the step behind it was on the device"


async def test_a_frame_that_makes_no_sense_is_reported_in_its_turn() -> None:
    steps, rig = decoding(3), recorded("llama3-grouped")
    frame = step_codec.step_to_proto(steps[2])
    frame.batches[0].kind = 99
    with device_of(rig.engine) as device:
        device.polls = 3
        reports = Reports(rig.engine)
        reports.submit(steps[0])
        reports.submit(steps[1])
        reports.thread.submit(1, frame)
        reports.thread.start()
        told = await reports.until(3)
    assert [report.result.number if report.result is not None else 0 for report in told] == [1, 2, 0]
    assert isinstance(told[2].malformed, MalformedSubmission)
