from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tartlet_common.abi import decode
from tartlet_common.errors.registry import Diverged, InvalidSource, JournalFull, TartletError
from tartlet_common.rpc.endpoints import make_channel
from tartlet_common.rpc.error_proto import error_from_proto
from tartlet_protos import common_pb2, programs_pb2, programs_pb2_grpc
from tartlet_runtime.guests.build import python_guest
from tartlet_runtime.journal.file_store import FileStore
from tartlet_runtime.journal.journal import Journal
from tartlet_runtime.journal.journals import Journals
from tartlet_runtime.journal.records import CommandDigest, JournalHeader, JournalRecord, Kind, read_journal
from tartlet_runtime.journal.replay import Replayed, replay_wasm
from tartlet_runtime.journal.space import Space
from tartlet_runtime.program.recorder import Recorder
from tartlet_runtime.wasm import Compiled, HostConfig, WasmHost
from tartlet_runtime.wasm.compiling.engine_flags import flags_digest
from tests.runtime.fake_control import FakeControl, serve_control
from tests.runtime.harness import PYTHON, WASM, Rig, Stream, launch_spec, make_settings, running

_Event = programs_pb2.ProgramEvent
C_GUESTS = Path(__file__).parents[3] / "inferlets" / "sdk" / "c" / "examples"

CHATTY = b"""
import asyncio, random, time, uuid
from inferlet import send, get_model, tokenize, receive
async def main():
    model = await get_model()
    send(f"{time.time()} {random.random()} {uuid.uuid4()} {model.name}")
    async def talk(name):
        for i in range(4):
            await asyncio.sleep(random.random() / 100)
            send(f"{name} {i} {time.monotonic()} {random.getrandbits(64)}")
    async with asyncio.TaskGroup() as group:
        for name in "abc":
            group.create_task(talk(name))
    got = await receive()
    send(f"got {got} at {time.time_ns()}")
    return str(time.time())
"""


def header(**changes: object) -> JournalHeader:
    fields: dict[str, object] = {
        "program_id": "p",
        "language": WASM,
        "filename": "f",
        "args": ("a", "\u00e9"),
        "seed": bytes(16),
        "start_ns": 5,
        "component": "c-f",
        "source": b"\0source",
        "limits": {"memory_bytes": 1},
    }
    return JournalHeader(**fields | changes)  # type: ignore[arg-type]


class Kept:
    """A directory of journals, written as a runtime does."""

    def __init__(self, directory: Path) -> None:
        space = Space(1 << 30)
        self.store = FileStore(directory, space)
        self.journals = Journals(self.store, space, now=lambda: 0.0)
        self.waiters: dict[Journal, Recorder] = {}

    def open(self, program_id: str, limit_bytes: int = 1 << 20) -> Journal:
        journal = self.journals.open(program_id, header(program_id=program_id).encode(), limit_bytes)
        self.waiters[journal] = Recorder(journal, self.journals, lost=_raise, room=lambda: None)
        self.waiters[journal].begin()
        return journal

    def flush(self, journal: Journal) -> None:
        self.journals.added(self.waiters[journal])
        self.journals.flush()


def _raise(error: TartletError) -> None:
    raise error


def write(directory: Path, records: list[bytes]) -> tuple[Kept, Path]:
    kept = Kept(directory)
    journal = kept.open("p")
    for i, data in enumerate(records):
        journal.digest.add(b"%d" % i)
        journal.append(i * 10, data)
        kept.flush(journal)
    kept.journals.close(journal, keep=True)
    return kept, kept.store.path("p")


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, records: list[bytes]) -> None:
    _, path = write(tmp_path_factory.mktemp("j"), records)
    got, read = read_journal(path)
    assert got == header()
    assert [r.delivery for r in read] == records
    assert [r.clock_ns for r in read] == [i * 10 for i in range(len(records))]


@given(cut=st.integers(0, 10_000), flip=st.booleans())
def test_a_torn_tail_costs_only_itself(tmp_path_factory: pytest.TempPathFactory, cut: int, flip: bool) -> None:
    records = [bytes([i]) * 50 for i in range(8)]
    _, path = write(tmp_path_factory.mktemp("j"), records)
    data = bytearray(path.read_bytes())
    keep = cut % len(data)
    if flip:
        data[keep] ^= 0x55
    else:
        del data[keep:]
    path.write_bytes(data)
    try:
        _, read = read_journal(path)
    except InvalidSource:
        assert keep < len(header().encode())
        return
    assert [r.delivery for r in read] == records[: len(read)]


def test_an_earlier_program_in_the_same_slot_leaves_nothing(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    first = kept.open("one")
    for _ in range(20):
        first.append(1, b"x" * 100)
    kept.flush(first)
    kept.journals.close(first, keep=False)
    second = kept.open("two")
    second.append(2, b"y" * 100)
    kept.flush(second)
    slots = list(tmp_path.glob("slot-*"))
    assert len(slots) == 1
    got, records = read_journal(slots[0])
    assert got.program_id == "two"
    assert [r.delivery for r in records] == [b"y" * 100]


def test_what_a_killed_runtime_left_holds_nothing_of_an_earlier_program(tmp_path: Path) -> None:
    slot = tmp_path / "slot-999999999-0"  # of a process that isn't there
    _, path = write(tmp_path / "before", [b"y" * 100])
    slot.write_bytes(path.read_bytes() + b"a secret of an earlier program" * 10)
    store = FileStore(tmp_path, Space(1 << 30))
    assert store.leftovers == ["p"]
    assert store.path("p").read_bytes() == path.read_bytes()


def test_a_journal_is_bounded(tmp_path: Path) -> None:
    journal = Kept(tmp_path).open("p", 500)

    def fill() -> None:
        for _ in range(100):
            journal.append(0, b"z" * 20)

    with pytest.raises(JournalFull):
        fill()


@pytest.fixture(scope="module")
def wasm(python_component: Compiled) -> Iterator[WasmHost]:
    with WasmHost(HostConfig(max_guests=8)) as host:
        yield host


def replay(wasm: WasmHost, path: Path, *, keep: int | None = None) -> Replayed:
    got, records = read_journal(path)
    if got.language == PYTHON:
        compiled = python_guest()
        digest = compiled.digest
    else:
        compiled = wasm.aot.compile(got.source)
        digest = hashlib.sha256(got.source).hexdigest()
    return replay_wasm(wasm, wasm.load(compiled), f"{digest}-{flags_digest()}", got, records[:keep])


async def launch_recorded(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, spec: programs_pb2.LaunchSpec, message: bytes = b""
) -> tuple[str, list[bytes], list[programs_pb2.ProgramEvent]]:
    """Run a program and write down its submissions as the runtime got them."""
    from tartlet_runtime.program.program import Program

    submissions: list[bytes] = []
    original = Program.on_submit

    def spy(self: Program, data: bytes) -> None:
        submissions.append(data)
        original(self, data)

    monkeypatch.setattr(Program, "on_submit", spy)
    stream = Stream(rig.stub.Launch(programs_pb2.LaunchRequest(specs=[spec])))
    accepted = await stream.next()
    assert accepted.kind == _Event.ACCEPTED, accepted
    if message:
        await asyncio.sleep(0.05)
        item = programs_pb2.SendItem(program_id=accepted.program_id, message=message)
        await rig.stub.Send(programs_pb2.SendRequest(items=[item]))
    events = await stream.rest()
    return accepted.program_id, submissions, events


async def test_a_python_program_replays_to_the_same_bytes(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, wasm: WasmHost
) -> None:
    async with running(run_dir, keep_journals=True) as rig:
        program_id, submissions, events = await launch_recorded(rig, monkeypatch, launch_spec(PYTHON, CHATTY), b"hey")
    assert events[-1].success, events[-1].error
    again = replay(wasm, run_dir / "journals" / f"{program_id}.journal")
    assert again.ended
    assert again.submissions == submissions
    assert again.text.encode() == events[-1].data


async def test_a_core_program_replays_to_the_same_bytes(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, wasm: WasmHost
) -> None:
    async with running(run_dir, keep_journals=True) as rig:
        args = ["--prompt", "abc", "--max-tokens", "6"]
        spec = launch_spec(WASM, (C_GUESTS / "text_completion.wasm").read_bytes(), args=args)
        program_id, submissions, events = await launch_recorded(rig, monkeypatch, spec)
    assert events[-1].success, events[-1].error
    again = replay(wasm, run_dir / "journals" / f"{program_id}.journal")
    assert again.ended
    assert len(submissions) > 3
    assert again.submissions == submissions


async def test_every_prefix_of_a_journal_replays(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, wasm: WasmHost
) -> None:
    async with running(run_dir, keep_journals=True) as rig:
        program_id, submissions, _ = await launch_recorded(rig, monkeypatch, launch_spec(PYTHON, CHATTY), b"hey")
    path = run_dir / "journals" / f"{program_id}.journal"
    total = sum(record.kind == Kind.DELIVERY for record in read_journal(path)[1])
    for keep in range(0, total, max(1, total // 5)):
        again = replay(wasm, path, keep=keep)
        assert not again.ended
        assert again.submissions == submissions[: len(again.submissions)]


async def test_a_changed_program_diverges(run_dir: Path, monkeypatch: pytest.MonkeyPatch, wasm: WasmHost) -> None:
    async with running(run_dir, keep_journals=True) as rig:
        program_id, _, _ = await launch_recorded(rig, monkeypatch, launch_spec(PYTHON, CHATTY), b"hey")
    got, records = read_journal(run_dir / "journals" / f"{program_id}.journal")
    planted = got.source.replace(b"range(4)", b"range(3)")
    changed = JournalHeader(**{n: getattr(got, n) for n in got.__dataclass_fields__} | {"source": planted})
    compiled = python_guest()
    with pytest.raises(Diverged):
        replay_wasm(wasm, wasm.load(compiled), f"{compiled.digest}-{flags_digest()}", changed, records)
    with pytest.raises(InvalidSource):
        replay_wasm(wasm, wasm.load(compiled), "other-flags", got, records)


@pytest.mark.usefixtures("python_component")
async def test_journals_of_good_ends_go_and_those_of_failures_stay(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        specs = [launch_spec(PYTHON, b"def main(): pass\n"), launch_spec(PYTHON, b"1 / 0\n")]
        stream = Stream(rig.stub.Launch(programs_pb2.LaunchRequest(specs=specs)))
        ids = [(await stream.next()).program_id for _ in specs]
        await stream.rest()
        assert [p.name for p in (run_dir / "journals").glob("*.journal")] == [f"{ids[1]}.journal"]
    assert not list((run_dir / "journals").glob("slot-*"))


@pytest.mark.usefixtures("python_component")
async def test_a_full_journal_ends_a_program_unless_it_is_not_durable(run_dir: Path) -> None:
    source = b"""
from inferlet import get_model
async def main():
    for _ in range(300):
        await get_model()
    return 'done'
"""
    async with running(run_dir) as rig:
        limits = common_pb2.Limits(journal_bytes=20_000)
        specs = [launch_spec(PYTHON, source, limits=limits, durable=durable) for durable in (True, False)]
        stream = Stream(rig.stub.Launch(programs_pb2.LaunchRequest(specs=specs)))
        ended = {e.index: e for e in await stream.rest() if e.kind == _Event.ENDED}
    assert isinstance(error_from_proto(ended[0].error), JournalFull)
    assert ended[1].data == b"done", ended[1].error


@pytest.mark.usefixtures("python_component")
async def test_a_killed_runtimes_journals_replay(run_dir: Path, wasm: WasmHost) -> None:
    settings = make_settings(run_dir)
    server = await serve_control(FakeControl(), settings.control)
    flags = ["--address", settings.address, "--control", settings.control]
    flags += ["--guest-socket", str(settings.guest_socket), "--journal-dir", str(settings.journal_dir)]
    command = [sys.executable, "-m", "tartlet_runtime", *flags, "--log-level", "warning"]
    process = subprocess.Popen(command)  # noqa: ASYNC220 - starting it takes a millisecond
    channel = make_channel(settings.address)
    try:
        stub = programs_pb2_grpc.ProgramsStub(channel)
        call = stub.Launch(
            programs_pb2.LaunchRequest(specs=[launch_spec(PYTHON, CHATTY)]), wait_for_ready=True, timeout=30
        )
        stream = Stream(call)
        program_id = (await stream.next(30)).program_id
        seen = [(await stream.next()).data for _ in range(13)]  # it waits for a message now
        await asyncio.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        call.cancel()
    finally:
        process.kill()
        process.wait()
        await channel.close()
        await server.stop(None)
    journals = FileStore(settings.journal_dir, Space(1 << 30))
    assert journals.leftovers == [program_id]
    path = journals.path(program_id)
    whole, records = replay(wasm, path), read_journal(path)[1]
    assert sent(whole.submissions) == seen, "what a client has seen was journaled before"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 3)
    torn = replay(wasm, path)
    assert not torn.ended
    # The torn delivery's part is lost and no more: what it brought about is one `send`, or several where several sleeps
    # had ended when it was given. The journal itself says what the program had submitted before.
    assert torn.submissions == submitted_before(records[-1], whole.submissions)
    assert sent(torn.submissions) == seen[: len(sent(torn.submissions))]


def submitted_before(record: JournalRecord, submissions: list[bytes]) -> list[bytes]:
    digest = CommandDigest()
    for count, submission in enumerate(submissions):
        if digest.value() == record.digest:
            return submissions[:count]
        digest.add(submission)
    return submissions


def sent(submissions: list[bytes]) -> list[bytes]:
    return [payload for submission in submissions for payload in messages(submission)]


def messages(submission: bytes) -> list[bytes]:
    batch = decode(submission)
    rows = [row for row in batch.records.tolist() if row[0] == 2]
    return [batch.payload[row[7] : row[7] + row[8]] for row in rows]
