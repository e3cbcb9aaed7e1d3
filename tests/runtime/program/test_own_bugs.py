"""Exceptions of the runtime's own end the programs that they touch, typed and told; the role goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tartlet_common.abi import Op
from tartlet_common.errors.registry import InternalError
from tartlet_common.rpc.error_proto import error_from_proto
from tartlet_runtime.link.frames import Outbox
from tartlet_runtime.wasm.fibers.fiber import Fiber
from tests.runtime.bystanders import SAMPLE, bystander, ended
from tests.runtime.guests.test_wasm_programs import run_program
from tests.runtime.harness import native, running

pytestmark = pytest.mark.usefixtures("python_component")

SLEEPS = "import asyncio\nasync def main():\n    await asyncio.sleep(0.01)\n"


async def test_commands_that_cannot_be_sent_are_lost_with_their_programs(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = Outbox.take

    def breaks(self: Outbox) -> Any:
        if not self.commands:
            return take(self)
        monkeypatch.undo()
        raise RuntimeError("a bug")

    async with running(run_dir) as rig:
        stream, guest = await native(rig)
        idle, other = await native(rig)
        monkeypatch.setattr(Outbox, "take", breaks)
        guest.submit(SAMPLE)
        await guest.wait()  # the next link begins with what the program has sent
        guest.end()
        assert await ended(stream) is None
        other.submit(SAMPLE)  # it waits for the new stream
        await other.wait()
        other.end()
        assert await ended(idle) is None
        await bystander(rig)


async def test_a_delivery_that_breaks_ends_its_program(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(_self: Fiber, _delivery: Any) -> None:
        monkeypatch.undo()
        raise RuntimeError("a bug")

    async with running(run_dir) as rig:
        stream, guest = await native(rig)  # it stays through all of it
        monkeypatch.setattr(Fiber, "deliver", breaks)
        events = await run_program(rig, SLEEPS)
        assert isinstance(error_from_proto(events[-1].error), InternalError)
        assert await guest.call(Op.AVAILABLE_MODELS) == b'["fake"]'
        guest.end()
        assert await ended(stream) is None
        await bystander(rig)
