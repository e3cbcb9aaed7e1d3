from __future__ import annotations

import asyncio
import hashlib
import threading
from pathlib import Path

import pytest

from tartlet_common.errors.registry import (
    CorruptModule,
    InvalidArgument,
    ProgramCpuExceeded,
    ProgramFailed,
    ProgramMemoryExceeded,
    StartFailed,
    UnknownModel,
)
from tartlet_common.rpc.error_proto import error_from_proto
from tartlet_protos import common_pb2, control_pb2, programs_pb2
from tartlet_runtime.abi.limits import PYTHON_BYTES, default_limits
from tartlet_runtime.budget.ledger import Ledger
from tartlet_runtime.guests.sandboxed import WasmGuests
from tartlet_runtime.program.spans import Spans
from tartlet_runtime.program.spec import ProgramSpec
from tartlet_runtime.serving.specs import specify
from tartlet_runtime.wasm import Compiled, GuestLimits, HostConfig, Phase, WasmHost
from tests.runtime.bystanders import launch
from tests.runtime.harness import PYTHON, WASM, Rig, Stream, launch_spec, make_settings, running

_Event = programs_pb2.ProgramEvent
pytestmark = pytest.mark.usefixtures("python_component")
SEND_AND_EXIT = Path(__file__).parents[3] / "inferlets" / "sdk" / "c" / "examples" / "send_and_exit.wasm"


async def run_program(rig: Rig, source: str | bytes, **fields: object) -> list[programs_pb2.ProgramEvent]:
    """Launch one program and collect its events behind ACCEPTED."""
    data = source.encode() if isinstance(source, str) else source
    fields.setdefault("language", PYTHON)
    stream = Stream(rig.stub.Launch(programs_pb2.LaunchRequest(specs=[launch_spec(data=data, **fields)])))  # type: ignore[arg-type]
    first = await stream.next()
    assert first.kind == _Event.ACCEPTED, first
    return await stream.rest()


async def test_a_python_program_prints_sends_and_returns(run_dir: Path) -> None:
    source = """
import sys
from inferlet import send, get_arg
async def main():
    print("hello", sys.argv[1])
    send("message")
    print("oops", file=sys.stderr)
    return 6 * 7
"""
    async with running(run_dir) as rig:
        events = await run_program(rig, source, args=["you"])
    text = {kind: b"".join(e.data for e in events if e.kind == kind) for kind in (2, 3, 4, 5, 6)}
    assert text[_Event.STDOUT] == b"hello you\n"
    assert text[_Event.MESSAGE] == b"message"
    assert text[_Event.STDERR] == b"oops\n"
    assert events[-1].data == b"42"


async def test_a_traceback_reaches_the_client_whole(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        events = await run_program(rig, "def main():\n    x = 1\n    return x / 0\n", filename="mine.py")
    error = error_from_proto(events[-1].error)
    assert isinstance(error, ProgramFailed)
    assert 'File "mine.py", line 3, in main' in error.fields["traceback"]
    assert "ZeroDivisionError" in error.fields["traceback"]


async def test_python_talks_to_the_runtime_and_to_control(run_dir: Path) -> None:
    source = """
from inferlet import *
async def main():
    model = await get_model()
    return [model.name, str(await receive())]
"""
    async with running(run_dir) as rig:
        spec = launch_spec(PYTHON, source.encode())
        stream = Stream(rig.stub.Launch(programs_pb2.LaunchRequest(specs=[spec])))
        accepted = await stream.next()
        item = programs_pb2.SendItem(program_id=accepted.program_id, message=b"ping")
        await rig.stub.Send(programs_pb2.SendRequest(items=[item]))
        events = await stream.rest()
    assert events[-1].success, events[-1].error
    assert b"'fake'" in events[-1].data
    assert b"ping" in events[-1].data


async def test_sleep_takes_time_and_does_not_hold_others(run_dir: Path) -> None:
    slow = """
import time
def main():
    t = time.monotonic()
    time.sleep(0.3)
    return round(time.monotonic() - t, 1)
"""
    async with running(run_dir) as rig:
        waiting = asyncio.ensure_future(run_program(rig, slow))
        await asyncio.sleep(0.05)
        fast = await run_program(rig, "def main():\n    return 'fast'\n")
        assert not waiting.done()
        assert fast[-1].data == b"fast"
        assert (await waiting)[-1].data == b"0.3"


async def test_an_endless_loop_and_a_memory_hog_end_and_others_go_on(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        loop = run_program(rig, "while True: pass\n", limits=common_pb2.Limits(cpu_slice_s=0.3))
        hog = run_program(
            rig, "def main():\n    return len(bytearray(1 << 30))\n", limits=common_pb2.Limits(memory_bytes=64 << 20)
        )
        fine = run_program(rig, "import asyncio\nasync def main():\n    await asyncio.sleep(0.1)\n    return 1\n")
        looped, hogged, went = await asyncio.gather(loop, hog, fine)
    assert isinstance(error_from_proto(looped[-1].error), ProgramCpuExceeded)
    assert isinstance(error_from_proto(hogged[-1].error), ProgramMemoryExceeded)
    assert went[-1].data == b"1"


async def test_a_core_module_runs_and_a_second_launch_needs_no_compile(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        for _ in range(2):
            events = await run_program(rig, SEND_AND_EXIT.read_bytes(), language=WASM)
            assert events[-1].success, events[-1].error
            assert events[0].kind == _Event.MESSAGE
        told = [start.digest for frame in rig.control.frames for start in frame.starts]
        assert told == [hashlib.sha256(SEND_AND_EXIT.read_bytes()).hexdigest()] * 2, "by which control knows their like"


async def test_a_burst_that_starts_slowly_is_followed_by_spares_for_all_of_it(run_dir: Path) -> None:
    burst = 8
    async with running(run_dir) as rig:
        module = SEND_AND_EXIT.read_bytes()
        await run_program(rig, module, language=WASM)  # compiles it
        rig.control.hold_starts = True
        began = len(rig.control.frames)
        stream = await launch(rig, *[launch_spec(WASM, module)] * burst)
        starts = [s for f in rig.control.frames[began:] for s in f.starts]
        while len(starts) < burst:
            await asyncio.sleep(0.01)
            starts = [s for f in rig.control.frames[began:] for s in f.starts]
        for some in (starts[: burst // 2], starts[burst // 2 :]):
            reply = control_pb2.ControlFrame()
            for start in some:
                reply.started.add(handle=start.handle)
            await rig.control.push(reply)
            await asyncio.sleep(2.1)  # so long that the parts look like two bursts, and that all spares are made
        assert sum(e.kind == _Event.ENDED for e in await stream.rest()) == burst
        state = await rig.stub.RuntimeState(programs_pb2.RuntimeStateRequest())
    assert state.spares - HostConfig().min_spares in {burst, burst + 1}  # and the first program


async def test_a_corrupt_module_is_rejected(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        spec = launch_spec(WASM, b"\0asm\1\0\0\0garbage")
        stream = Stream(rig.stub.Launch(programs_pb2.LaunchRequest(specs=[spec])))
        rejected = await stream.next()
        assert rejected.kind == _Event.REJECTED
        assert isinstance(error_from_proto(rejected.error), CorruptModule)


@pytest.mark.parametrize(
    ("source", "number"),
    [(b"x = 1\n", 0), (b"def main(:\n", 111), (b"\xff\xfe", 111), (b"a\0b", 111), (b"(" * 20000, 111)],
)
async def test_validate_judges_a_source_as_its_sandbox_would(run_dir: Path, source: bytes, number: int) -> None:
    async with running(run_dir) as rig:
        request = programs_pb2.ValidateRequest(source=common_pb2.Source(language=PYTHON, data=source, filename="m.py"))
        reply = await rig.stub.Validate(request)
        assert reply.error.number == number, reply


async def test_many_python_programs_at_once(run_dir: Path) -> None:
    async with running(run_dir) as rig:
        source = b"from inferlet import send\ndef main():\n    send('x')\n"
        specs = [launch_spec(PYTHON, source) for _ in range(64)]
        stream = Stream(rig.stub.Launch(programs_pb2.LaunchRequest(specs=specs)))
        events = await stream.rest()
    assert sum(e.kind == _Event.MESSAGE for e in events) == 64
    assert sum(e.success for e in events if e.kind == _Event.ENDED) == 64


async def test_launches_that_wait_for_one_compilation_share_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(tmp_path)
    asked = programs_pb2.LaunchSpec(source=common_pb2.Source(language=WASM, data=SEND_AND_EXIT.read_bytes()))
    spec = specify(asked, asked.source, default_limits(settings))
    guests = WasmGuests(settings, Ledger(8 << 30))
    loaded: list[Compiled] = []
    load = guests.host.load

    def counted(compiled: Compiled) -> object:
        loaded.append(compiled)
        return load(compiled)

    monkeypatch.setattr(guests.host, "load", counted)
    try:
        await asyncio.gather(*(guests.prepare(spec) for _ in range(5)))
        assert len(loaded) == 1
    finally:
        guests.close()


async def test_modules_of_one_tenant_never_keep_another_from_the_compilers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(tmp_path)
    guests = WasmGuests(settings, Ledger(8 << 30))
    goes_on = threading.Event()
    compiled_by, module = guests.host.aot.compile, SEND_AND_EXIT.read_bytes()

    def compile_late(wasm: bytes) -> Compiled:
        if wasm != module:
            assert goes_on.wait(30)
        return compiled_by(wasm)

    def spec_of(tenant: str, data: bytes) -> ProgramSpec:
        asked = programs_pb2.LaunchSpec(tenant=tenant, source=common_pb2.Source(language=WASM, data=data))
        return specify(asked, asked.source, default_limits(settings))

    monkeypatch.setattr(guests.host.aot, "compile", compile_late)
    try:
        others = [module + bytes([0, 2, 1, ord(name)]) for name in "abcd"]  # with a section that says nothing
        flood = asyncio.gather(*(guests.prepare(spec_of("flood", data)) for data in others))
        await asyncio.sleep(0)
        async with asyncio.timeout(30):
            await guests.prepare(spec_of("calm", module))
        assert not flood.done()
        goes_on.set()
        await flood
    finally:
        goes_on.set()
        guests.close()


async def test_a_launch_with_less_memory_than_python_needs_is_refused_and_says_how_much_that_is(run_dir: Path) -> None:
    source = "async def main():\n    return 'ran'\n"
    async with running(run_dir) as rig:
        *_, end = await run_program(rig, source, limits=common_pb2.Limits(memory_bytes=PYTHON_BYTES))
        assert (end.success, end.data) == (True, b"ran")
        for bytes_ in (1, PYTHON_BYTES - 1):
            spec = launch_spec(PYTHON, source.encode(), limits=common_pb2.Limits(memory_bytes=bytes_))
            refused = await Stream(rig.stub.Launch(programs_pb2.LaunchRequest(specs=[spec]))).next()
            error = error_from_proto(refused.error)
            assert isinstance(error, InvalidArgument)
            assert error.fields["argument"] == "limits.memory_bytes"


async def test_no_python_starts_in_less_memory_than_it_is_said_to_need(
    tmp_path: Path, python_component: Compiled
) -> None:
    guests = WasmGuests(make_settings(tmp_path), Ledger(8 << 30))
    try:
        guest = guests.host.create(guests.host.load(python_component), limits=GuestLimits(PYTHON_BYTES - (1 << 20)))
        guest.start("", "p.py")
        while guest.step() is Phase.READY:
            pass
        assert guest.outcome is not None
        assert isinstance(guest.outcome.error, ProgramMemoryExceeded)
    finally:
        guests.close()


async def test_a_runtime_whose_programs_get_too_little_for_python_runs_the_others(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, memory_bytes=PYTHON_BYTES - 1)
    guests = WasmGuests(settings, Ledger(8 << 30))
    try:
        wasm = common_pb2.Source(language=WASM, data=SEND_AND_EXIT.read_bytes())
        await guests.prepare(specify(programs_pb2.LaunchSpec(), wasm, default_limits(settings)))
        assert guests.component == ""
        with pytest.raises(StartFailed) as refused:
            await guests.check_python(b"", "p.py", 1.0)
        assert refused.value.fields["role"] == "Python"
    finally:
        guests.close()


async def test_refused_launches_prepare_no_guests_and_their_models_are_no_labels(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected: list[object] = []
    labels: list[str] = []
    monkeypatch.setattr(WasmHost, "expect", lambda _host, module, _asked_s: expected.append(module))
    monkeypatch.setattr(Spans, "end", lambda _spans, _span, model, _usage, _error: labels.append(model))
    source = b"def main(): return 7\n"
    async with running(run_dir) as rig:
        rig.control.refuse = UnknownModel(model="mine", available="fake")
        stream = await launch(rig, *(launch_spec(PYTHON, source, model=f"mine-{i}") for i in range(3)))
        assert [e.kind for e in await stream.rest()] == [_Event.REJECTED] * 3
        assert (expected, labels) == ([], [""] * 3)
        rig.control.refuse = None
        stream = await launch(rig, launch_spec(PYTHON, source, model="fake"), launch_spec(PYTHON, source))
        assert (await stream.rest())[-1].success
        assert (len(expected), labels[3:]) == (2, ["fake"] * 2)


@pytest.mark.usefixtures("python_component")
async def test_a_seed_decides_a_program_s_randomness_with_and_without_a_journal(run_dir: Path) -> None:
    source = b"import random, secrets\ndef main(): return f'{random.random()} {secrets.token_hex(4)}'\n"
    async with running(run_dir) as rig:
        wanted = [(durable, seed) for durable in (True, False) for seed in (b"s" * 16, b"s" * 16, b"")]
        specs = [launch_spec(PYTHON, source, durable=durable, seed=seed) for durable, seed in wanted]
        stream = Stream(rig.stub.Launch(programs_pb2.LaunchRequest(specs=specs)))
        drawn = {e.index: e.data for e in await stream.rest() if e.kind == _Event.ENDED}
    assert drawn[0] == drawn[1] == drawn[3] == drawn[4]
    assert len({drawn[0], drawn[2], drawn[5]}) == 3
