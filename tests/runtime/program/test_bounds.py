"""What a hostile program asks of the runtime's parts stays within the bounds of docs/limits.md."""

from __future__ import annotations

import asyncio
import tracemalloc
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tartlet_common.abi import (
    HEADER_BYTES,
    MAX_SUBMISSION_BYTES,
    RECORD,
    RECORD_BYTES,
    RECORD_STRUCT,
    Event,
    Flag,
    Op,
    Record,
)
from tartlet_common.config.settings import RuntimeSettings
from tartlet_common.errors.registry import (
    InboxFull,
    MalformedSubmission,
    ResourceQuotaExceeded,
    TooManyCommands,
    UnknownModel,
)
from tartlet_common.rpc.endpoints import MAX_MESSAGE_BYTES, PROTOCOL_VERSION, Dialer
from tartlet_common.rpc.error_proto import error_from_proto
from tartlet_common.rpc.frame_streams import Joiner
from tartlet_protos import control_pb2
from tartlet_runtime.abi.history import History
from tartlet_runtime.abi.limits import MAX_NAME_BYTES, ProgramLimits, default_limits
from tartlet_runtime.abi.submission import parse
from tartlet_runtime.answers.backlog import ROWS_A_TURN
from tartlet_runtime.budget.holding import Holding
from tartlet_runtime.budget.ledger import Ledger, Use
from tartlet_runtime.guests.sandboxed import WasmGuests
from tartlet_runtime.link.control_link import ControlLink
from tartlet_runtime.program.driver import Driver
from tartlet_runtime.program.inbox import Inbox, pack_delivery
from tartlet_runtime.program.output_log import LogEvent, OutputLog
from tartlet_runtime.serving.calls import Call
from tartlet_runtime.wasm import Compiled
from tests.runtime.harness import make_settings, native, running


async def test_what_stands_beside_a_large_submission_does_not_pass_a_message() -> None:
    """Else the stream would break, and all programs of the runtime with it."""
    loop = asyncio.get_running_loop()
    link = ControlLink(
        Dialer("unix:/nowhere", None, role="control"), control_pb2.RuntimeHello(), Driver(loop), Joiner("unix:/nowhere")
    )
    link.programs = SimpleNamespace(journals="")  # nothing else is asked
    link.connected, link._writer = True, loop.create_future()
    link._peer.answered(control_pb2.ControlHello(protocol=PROTOCOL_VERSION))
    assert link._peer.link is not None
    program: Any = SimpleNamespace(
        handle=1,
        accepted=True,
        goes_on=False,
        has_engine_state=True,
        unsent_commands=0,
        history=History(lambda _: None),
    )
    longest = 4 * MAX_NAME_BYTES
    texts: dict[str, Any] = dict.fromkeys(("tenant", "idempotency_key", "model"), "x" * MAX_NAME_BYTES)
    starts = [control_pb2.ProgramStart(handle=2**31 + i, name="y" * longest, **texts) for i in range(100)]
    for start in starts:
        link.start(start)
    size = MAX_SUBMISSION_BYTES - HEADER_BYTES - 2 * RECORD_BYTES
    link.commands(program, 1, RECORD_STRUCT.pack(Op.USAGE, 0, 1, 0, 0, 0, 0, 0, size), bytes(size))
    for i in range(10_000):
        program.handle = 2**31 + i
        link.ended(program, failed=True)
    link.flush()
    frames = list(iter(link._peer.link.connect().take, None))
    assert max(frame.ByteSize() for frame in frames) <= MAX_MESSAGE_BYTES + (32 << 10)  # of the slack it has
    assert [start for frame in frames for start in frame.starts] == starts
    assert [end.handle for frame in frames for end in frame.ends] == [2**31 + i for i in range(10_000)]
    assert [frame.more for frame in frames] == [True] * (len(frames) - 1) + [False]
    sent = [frame.HasField("commands") for frame in frames]
    assert sent.index(True) <= [bool(frame.ends) for frame in frames].index(True)


async def test_answers_to_many_launches_are_cut_into_messages() -> None:
    call = Call(Driver(asyncio.get_running_loop()), expected=4096, asked_s=0.0)
    for index in range(call.expected):
        call.reject(index, UnknownModel(model="x" * MAX_NAME_BYTES, available=[]))
    messages = [message async for message in call.messages()]
    assert max(message.ByteSize() for message in messages) <= MAX_MESSAGE_BYTES
    assert [event.index for message in messages for event in message.events] == list(range(call.expected))


def shared_payload(count: int, size: int, local: int) -> bytes:
    """`count` records that all name the same `size` bytes, the first `local` of them for the runtime."""
    records = np.zeros(count, RECORD)
    records["op"] = Op.EMBED_TXT
    records["op"][:local] = Op.LOG
    records["length"] = size
    return pack_delivery(count, records.tobytes(), bytes(size))


@pytest.mark.parametrize("count", [2, 24, 400])
@pytest.mark.parametrize("local", [0, 1, 2])
def test_records_that_share_payload_are_refused(count: int, local: int) -> None:
    with pytest.raises(MalformedSubmission):
        parse(shared_payload(count, 1 << 20, local))
    whole = parse(shared_payload(1, 1 << 20, 0))
    assert len(whole.payload) == 1 << 20


def limits(**changes: Any) -> ProgramLimits:
    return replace(default_limits(RuntimeSettings()), **changes)


def inbox_of(memory: Holding | None = None, **changes: int) -> Inbox:
    memory = memory or Holding(Ledger(1 << 30), Use.INBOXES)
    return Inbox(limits(**changes), memory, arrived=lambda: None, heard=lambda: None)


def from_control(count: int, size: int) -> tuple[int, bytes, bytes]:
    """`count` answers; the first has `size` bytes."""
    records = np.zeros(count, RECORD)
    records["op"] = Event.RESULT
    records["length"][0] = size
    return count, records.tobytes(), bytes(size)


def test_answers_from_control_that_are_not_taken_are_bounded() -> None:
    inbox = inbox_of(commands_in_flight=100)
    for _ in range(64):
        inbox.add(*from_control(1, 1 << 20))
    with pytest.raises(ResourceQuotaExceeded):
        inbox.add(*from_control(1, 1))
    inbox = inbox_of(commands_in_flight=100)
    for _ in range(2):
        inbox.add(*from_control(100, 0))
    with pytest.raises(TooManyCommands):
        inbox.add(*from_control(100, 0))


def test_refusals_and_messages_to_waiting_receives_are_bounded_too() -> None:
    inbox = inbox_of(commands_in_flight=100)
    record = Record(Op.GET_MODEL, int(Flag.AWAIT), 1, 0, 0, 0, 0, 0, 0)

    def refuse_all() -> None:
        for _ in range(1000):
            inbox.refuse(record, UnknownModel(model="x", available=[]))

    with pytest.raises(TooManyCommands):
        refuse_all()
    inbox = inbox_of(commands_in_flight=100)
    for ticket in range(100):
        inbox.receive(ticket)
    for _ in range(32):
        inbox.put_message(bytes(2 << 20))
    with pytest.raises(InboxFull):
        inbox.put_message(bytes(2 << 20))
    assert inbox.payload_bytes <= 64 << 20


async def test_a_program_that_takes_fewer_answers_than_it_gets_ends_and_its_neighbour_runs(run_dir: Path) -> None:
    async with running(run_dir, commands_in_flight=100) as rig:
        _, neighbour = await native(rig)
        stream, guest = await native(rig)
        usage = {"flags": Flag.AWAIT}

        async def take_one_of_eight(turn: int) -> None:
            guest.submit(*[(Op.USAGE, usage | {"ticket": 8 * turn + i}) for i in range(1, 9)])
            await guest.wait(max_records=1)
            await asyncio.sleep(0.002)

        async def take_too_few() -> None:
            for turn in range(200):
                await take_one_of_eight(turn)

        with pytest.raises(TooManyCommands):
            await take_too_few()
        last = (await stream.rest())[-1]
        assert isinstance(error_from_proto(last.error), TooManyCommands)
        assert await neighbour.call(Op.GET_ARG) == b"[]"


def test_taking_one_record_of_many_does_not_copy_the_others() -> None:
    count = 30_000
    inbox = inbox_of(commands_in_flight=count)
    inbox.add(count, bytes(count * RECORD_BYTES), b"")
    tracemalloc.start()
    try:
        inbox.take(1)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 10_000, f"{most} bytes to take one record of {count}"
    assert inbox.count == count - 1


def test_output_that_was_dropped_is_not_kept() -> None:
    log = OutputLog(limit_bytes=8 << 20)
    payloads = 0
    tracemalloc.start()
    try:
        for i in range(200):
            log.append(LogEvent(3, bytes(1 << 20)))
            log.mark_read(i + 1)
        payloads, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert log.kept_bytes <= 8 << 20
    assert payloads < 10 << 20, f"{payloads} bytes held, {log.kept_bytes} counted"


async def test_a_validation_whose_caller_hangs_up_gives_its_guest_back(
    tmp_path: Path, python_component: Compiled
) -> None:
    guests = WasmGuests(make_settings(tmp_path, capacity=4), Ledger(8 << 30))
    try:
        for _ in range(5):
            check = asyncio.ensure_future(guests.check_python(b"x = 1\n" * 100_000, "long.py", 1.0))
            await asyncio.sleep(0)
            assert guests.host._guests, "it is being compiled"
            check.cancel()
            with pytest.raises(asyncio.CancelledError):
                await check
            assert not guests.host._guests
        await guests.check_python(b"x = 1\n", "short.py", 1.0)
    finally:
        guests.close()


async def test_nothing_that_a_native_program_says_after_its_end_has_an_effect(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        stream, guest = await native(rig)
        guest.submit(*[(Op.SEND, {"payload": b"before"})] * (ROWS_A_TURN + 1))  # a backlog, which the end waits for
        guest.end(text="done")
        guest.submit((Op.SEND, {"payload": b"after"}))
        events = await stream.rest()
    assert [e.data for e in events] == [b"before"] * (ROWS_A_TURN + 1) + [b"done"]
