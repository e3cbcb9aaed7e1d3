"""Many histories at a new control: its loop turns between two of them, and the frames behind them wait."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tartlet_common import abi
from tartlet_common.abi import Event
from tartlet_common.errors.registry import ControlLost
from tartlet_control.core.sessions import Runtimes
from tartlet_control.recovery import restorer
from tartlet_control.recovery.restorer import Restorer
from tartlet_control.tables.models import Models
from tartlet_protos import control_pb2
from tartlet_runtime.abi.history import History
from tests.control.harness import Host
from tests.control.served import Runtime, control, worker
from tests.control.serving.test_servers import decode_submission
from tests.runtime.fake_control import engine_spec

PROGRAMS = 24
TOKENS = 50
HISTORY_FRAMES = 3
"""Frames that carry the histories, each of which has several."""


def frames() -> list[control_pb2.RuntimeFrame]:
    """Returns what a runtime's new link with a new control begins with, and the ends of all of its programs."""
    batch = abi.decode(decode_submission(TOKENS))
    history = History(lambda _: None)
    history.sent(batch.records.tobytes(), bytes(batch.payload))
    data = history.message().SerializeToString()
    handles = range(1, PROGRAMS + 1)
    starts = [control_pb2.ProgramStart(handle=n, program_id=f"p{n}", running=True, history=True) for n in handles]
    made = [control_pb2.RuntimeFrame(starts=starts)]
    for at in range(HISTORY_FRAMES):
        frame = control_pb2.RuntimeFrame()
        for handle in handles[at::HISTORY_FRAMES]:
            frame.histories.add(handle=handle, data=data[:100], more=True)
            frame.histories.add(handle=handle, data=data[100:])
        made.append(frame)
    made.append(control_pb2.RuntimeFrame(ends=[control_pb2.ProgramEnd(handle=n, failed=True) for n in handles]))
    return made


async def test_one_history_is_folded_a_turn_and_what_follows_them_waits(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = 0
    folded: list[int] = []
    ended: list[int] = []
    restore: Any = Restorer.restore
    on_end: Any = Runtimes.on_end

    def restoring(*args: Any) -> None:
        folded.append(turns)
        restore(*args)

    def ending(*args: Any, **kwargs: Any) -> None:
        ended.append(len(folded))
        on_end(*args, **kwargs)

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    monkeypatch.setattr(Restorer, "restore", restoring)
    monkeypatch.setattr(Runtimes, "on_end", ending)
    async with control(run_dir) as address, worker(address):
        runtime = Runtime(address)
        await runtime.hello()
        await runtime.models()
        counting = asyncio.create_task(count())
        for frame in frames():
            await runtime.stream.write(frame)
        settled = 0
        while settled < PROGRAMS:
            settled += len((await runtime.read()).settled)
        counting.cancel()
        await runtime.close()
    assert len(folded) == PROGRAMS
    assert len(set(folded)) == PROGRAMS, "two were folded in one turn"
    assert ended == [PROGRAMS] * PROGRAMS, "an end overtook a history"


async def test_a_runtime_keeps_its_models_until_control_knows_them(run_dir: Path) -> None:
    """Control may die in between, and the runtime then tells the next control the models that it was told."""
    info = control_pb2.ModelInfo(index=3, name="fake", spec_json=json.dumps(asdict(engine_spec())))
    start = control_pb2.ProgramStart(handle=1, program_id="p", model="fake", running=True, history=True)
    async with control(run_dir) as address:
        runtime = Runtime(address)
        await runtime.hello(programs=[start])
        await asyncio.sleep(0.2)
        await runtime.stream.write(control_pb2.RuntimeFrame(models=[info]))
        while not (frame := await runtime.read()).models_changed:
            pass
        assert [(model.index, model.name) for model in frame.models] == [(3, "fake")]
        await runtime.close()


@pytest.mark.parametrize("comes", [True, False])
async def test_a_history_waits_for_the_first_engine_of_its_pool(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, *, comes: bool
) -> None:
    """Engines may return to a new control after the runtimes, and only engines say which pools there are."""
    monkeypatch.setattr(restorer, "ENGINES_S", 30.0 if comes else 0.3)
    tried = asyncio.Event()
    lacks: Any = Restorer._lacks_engines

    def lacking(self: Restorer, session: Any, program: Any) -> bool:
        tried.set()
        found: bool = lacks(self, session, program)
        return found

    monkeypatch.setattr(Restorer, "_lacks_engines", lacking)
    batch = abi.decode(decode_submission(TOKENS))
    history = History(lambda _: None)
    history.sent(batch.records.tobytes(), bytes(batch.payload))
    start = control_pb2.ProgramStart(
        handle=1, program_id="p", tenant="team", pool="team/pool", running=True, history=True
    )
    async with control(run_dir) as address, contextlib.AsyncExitStack() as engines:
        runtime = Runtime(address)
        await runtime.hello(programs=[start])
        frame = control_pb2.RuntimeFrame()
        frame.histories.add(handle=1, data=history.message().SerializeToString())
        await runtime.stream.write(frame)
        await asyncio.wait_for(tried.wait(), 10)
        if comes:
            await engines.enter_async_context(worker(address, pool="team/pool"))
            rows = await runtime.deliveries(1)
            assert {row[0] for row in rows} == {Event.RESULT}
        else:
            while not (told := await runtime.read()).kills:
                pass
            assert told.kills[0].error.number == ControlLost.number
        await runtime.close()


def test_many_programs_that_wait_for_one_pool_are_looked_up_once_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    host, lookups = Host(engines=0), list[str]()
    named: Any = Models.named

    def look_up(*args: Any) -> Any:
        lookups.append(args[1])
        return named(*args)

    monkeypatch.setattr(Models, "named", look_up)
    waiting = Restorer(host.core)
    for n in range(300):
        guest = host.start(f"p{n}", pool="ns/pool", running=True, history=True)
        waiting.on_part(host.session, guest.handle, b"", more=False)
    lookups.clear()
    for _ in range(3):
        assert not waiting.fold_next(host.session)
    assert len(lookups) == 3
    host.clock.advance(restorer.ENGINES_S)
    for _ in range(300):
        assert waiting.fold_next(host.session)
    assert not waiting.waits(host.session)
