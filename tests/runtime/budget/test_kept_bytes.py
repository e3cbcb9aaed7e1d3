"""What the runtime keeps beside guests counts as its memory: output, messages, and journals that wait to be written."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tartlet_common.errors.registry import MemoryBudgetExceeded, TartletError
from tartlet_protos import common_pb2, programs_pb2
from tartlet_runtime.budget.holding import FREE_BYTES, GRAIN_BYTES, Holding
from tartlet_runtime.budget.ledger import Ledger, Use
from tartlet_runtime.journal import space as space_module
from tartlet_runtime.journal.file_store import FileStore
from tartlet_runtime.journal.journals import Journals
from tartlet_runtime.journal.records import JournalHeader
from tartlet_runtime.journal.space import Space
from tartlet_runtime.program.driver import Driver
from tests.runtime.budget.test_programs_in_1_gib import GIB, MIB, answers, end, error_of, taken
from tests.runtime.harness import PYTHON, launch_spec, running, until
from tests.runtime.program.test_bounds import from_control, inbox_of

_Event = programs_pb2.ProgramEvent


def test_a_holding_touches_the_ledger_in_grains_and_gives_everything_back() -> None:
    ledger = Ledger(3 * GRAIN_BYTES)
    first, second = Holding(ledger, Use.OUTPUTS), Holding(ledger, Use.INBOXES)
    first.fit(FREE_BYTES)
    assert ledger.taken[Use.OUTPUTS] == 0
    first.fit(FREE_BYTES + 1)
    first.fit(FREE_BYTES + GRAIN_BYTES + 1)
    assert ledger.taken[Use.OUTPUTS] == 2 * GRAIN_BYTES
    with pytest.raises(MemoryBudgetExceeded) as refused:
        second.fit(FREE_BYTES + GRAIN_BYTES + 1)
    assert refused.value.fields["use"] == "inboxes"
    assert second.granted == FREE_BYTES
    first.fit(0)
    assert ledger.free_bytes == ledger.bound_bytes
    first.fit(FREE_BYTES + 1)
    first.fit(0)  # one grain stays: small changes don't touch the ledger
    assert ledger.taken[Use.OUTPUTS] == GRAIN_BYTES
    first.close()
    assert ledger.free_bytes == ledger.bound_bytes


def test_what_may_give_way_does_before_a_holding_is_refused() -> None:
    ledger = Ledger(GRAIN_BYTES)
    ledger.add(Use.MODULES, GRAIN_BYTES)
    asked: list[int] = []

    def make_room(wanted: int) -> None:
        asked.append(wanted)
        ledger.give(Use.MODULES, GRAIN_BYTES)

    Holding(ledger, Use.OUTPUTS, make_room).fit(FREE_BYTES + 1)
    assert asked == [GRAIN_BYTES]


def test_messages_that_a_program_leaves_unread_count_until_it_takes_them() -> None:
    ledger = Ledger(7 * MIB)
    inbox = inbox_of(memory=Holding(ledger, Use.INBOXES))
    for _ in range(3):
        inbox.put_message(bytes(2 * MIB))
    with pytest.raises(MemoryBudgetExceeded):
        inbox.put_message(bytes(2 * MIB))  # the sender's error: the program notices nothing
    for ticket in range(3):
        inbox.receive(ticket)
        inbox.take(0)
    assert ledger.taken[Use.INBOXES] <= GRAIN_BYTES
    for _ in range(7):
        inbox.add(*from_control(1, MIB))
    with pytest.raises(MemoryBudgetExceeded):
        inbox.add(*from_control(1, MIB))  # the program, which takes none of its answers, ends
    inbox.close()
    assert ledger.free_bytes == ledger.bound_bytes


class Writer:
    """A program that adds a record to its journal in each step."""

    queued = False
    heard = 0

    def __init__(self, journals: Journals, number: int, record_bytes: int) -> None:
        text = JournalHeader(str(number), 1, "p.py", (), b"s", 0, "c", b"x" * 3000).encode()
        self.journals, self.journal = journals, journals.open(str(number), text, 1 << 20)
        self.record_bytes = record_bytes
        journals.added(self)

    def prepare(self) -> None:
        return None

    def run(self) -> None:
        self.journal.append(0, bytes(self.record_bytes))
        self.journals.added(self)

    def release(self, turn: int) -> None:
        pass

    def acknowledge(self, heard: int) -> None:
        pass

    def room(self) -> None:
        pass

    def lose(self, error: TartletError) -> None:
        raise AssertionError(error)


async def test_records_wait_for_the_end_of_a_turn_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(space_module, "BUFFERED_BYTES", 10_000)
    space = Space(1 << 30)
    store = FileStore(tmp_path, space)
    journals = Journals(store, space, now=time.monotonic)
    driver = Driver(asyncio.get_running_loop())
    pending: list[int] = []

    def is_crowded() -> bool:
        pending.append(space.pending_bytes)
        return space.is_crowded

    driver.store_turn, driver.is_crowded = journals.flush, is_crowded
    writers = []
    for number in range(100):
        writers.append(Writer(journals, number, 2000))
        assert space.pending_bytes < 10_000 + 3500
    for _ in range(5):
        for writer in writers:
            driver.again(writer)
        await until(lambda: not any(writer.queued for writer in writers))
    assert max(pending) < 10_000 + 3500 + 2100  # the first step comes after the last header
    await until(lambda: space.pending_bytes == 0)
    for number, writer in enumerate(writers):
        assert (await store.read(str(number))).data.count(bytes(2000)) == 5
        writer.journal.append(9, b"last")
        journals.close(writer.journal, keep=number % 2 == 0)
    assert space.pending_bytes == space.num_running == 0
    store.close_all()


@pytest.mark.usefixtures("python_component")
async def test_programs_whose_output_fills_the_memory_end_and_another_goes_on(run_dir: Path) -> None:
    """14 programs write 32 MiB each into 512 MiB, which nobody reads; each may leave 64 MiB unread."""
    writes = """
import sys
from inferlet import receive
async def main():
    for _ in range(32):
        sys.stdout.write("x" * (1 << 20))
        sys.stdout.flush()
    await receive()
"""
    reads = """
from inferlet import receive, send
async def main():
    send("y" * (1 << 20))
    await receive()
    return "read"
"""
    own = common_pb2.Limits(memory_bytes=64 * MIB)
    limits = common_pb2.Limits(output_bytes=64 * MIB)
    async with running(run_dir, process_memory_bytes=GIB // 2, output_bytes=64 * MIB) as rig:
        beside, (bystander,) = await answers(rig, [launch_spec(PYTHON, reads.encode(), limits=own)])
        stream, first = await answers(rig, [launch_spec(PYTHON, writes.encode(), limits=limits) for _ in range(14)])
        accepted = [event for event in first if event.kind == _Event.ACCEPTED]
        assert len(accepted) == 14
        held = await taken(rig)
        while True:  # until each has written all, or has ended
            await asyncio.sleep(1)
            before, held = held, await taken(rig)
            assert sum(held.values()) <= GIB // 2
            if held["outputs"] >= 64 * MIB and held == before:
                break
        await end(rig, accepted)
        ends = [event for event in await stream.rest(60) if event.kind == _Event.ENDED]
        errors = [error_of(event) for event in ends if not event.success]
        assert all(isinstance(error, MemoryBudgetExceeded) for error in errors)
        uses = {error.fields["use"] for error in errors if error is not None}
        assert "outputs" in uses
        assert uses <= {"outputs", "programs"}  # a guest that grows while outputs fill the memory is refused, too
        assert 1 <= len(errors) < 14
        await end(rig, [bystander])
        last = (await beside.rest())[-1]
        assert (error_of(last), last.data) == (None, b"read")
