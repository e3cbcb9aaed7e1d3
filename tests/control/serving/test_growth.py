"""All that control keeps has bounds, ended programs leave nothing, and no message outgrows its limit."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tartlet_common.abi import Op
from tartlet_common.errors.registry import InvalidArgument, Overloaded, UnknownModel
from tartlet_common.rpc import endpoints
from tartlet_common.rpc.endpoints import MAX_MESSAGE_BYTES
from tartlet_common.rpc.error_proto import error_from_proto
from tartlet_control.serving import catalogue, control_service
from tartlet_control.serving import catalogue_service as server_catalogue
from tartlet_control.serving.core_loop import CoreLoop
from tartlet_control.serving.frames import frames_of
from tartlet_control.serving.specs import spec_from_json
from tartlet_control.serving.state import PROGRAMS_SHOWN, state_of
from tartlet_control.tables.models import Models
from tartlet_control.tables.numbering import Numbering
from tartlet_control.tables.outbox import Notices
from tartlet_control.tables.programs import ProgramState
from tartlet_protos import common_pb2, control_pb2, control_pb2_grpc
from tests.control.harness import Host, decode_text
from tests.control.served import Runtime, control, worker
from tests.control.serving.test_catalogue import entry
from tests.runtime.fake_control import engine_spec


def _programs() -> int:
    return sum(type(o) is ProgramState for o in gc.get_objects())  # `isinstance` asks the objects, and some warn


def test_an_ended_program_is_gone_without_the_collector() -> None:
    """Which `app.calm_collector` has run rarely: cycles of long-lived programs would stay for millions of launches."""
    host = Host()
    gc.collect()
    gc.disable()
    others = _programs()  # that earlier tests hold on to
    try:
        for ends in (host.end, lambda _: host.core.lose_runtime(host.session)):
            guest = host.start()
            decode_text(guest, [1, 2, 3], 4)
            host.run()
            assert _programs() == others + 1
            ends(guest)
            assert _programs() == others
    finally:
        gc.enable()


def test_lanes_that_an_engine_never_heard_of_are_not_kept_for_it() -> None:
    host = Host()
    for _ in range(200):
        guest = host.start()
        guest.alloc(Op.ALLOC_KVPAGE, [0])
        guest.alloc(Op.ALLOC_KVPAGE, [0])  # in use: poisons the queue
        host.end(guest)
    assert not host.engine.reset_lanes
    assert not host.steps
    guest = host.start()
    decode_text(guest, [1, 2], 3)
    host.run()
    assert guest.tokens()
    host.check_idle()


def test_specs_of_all_models_fit_a_message() -> None:
    models = Models()
    big = "x" * (100 << 10)  # a chat template
    specs = [engine_spec(model=f"m{i}", chat_template=big) for i in range(100)]
    with pytest.raises(Overloaded):
        list(map(models.join, specs))
    infos = [control_pb2.ModelInfo(**m.info()) for m in models]
    assert 10 < len(infos) < 30
    assert control_pb2.ControlFrame(models=infos).ByteSize() < MAX_MESSAGE_BYTES // 2 + (1 << 16)
    models.join(engine_spec(model="m0", chat_template=big))  # another engine of a known model costs nothing
    with pytest.raises(UnknownModel) as unknown:
        models.named("nobody")
    assert len(unknown.value.fields["available"]) <= 20


def test_a_models_name_is_bounded() -> None:
    with pytest.raises(InvalidArgument, match="model"):
        spec_from_json(json.dumps(asdict(engine_spec(model="m" * 300))))


async def test_many_answers_to_launches_are_cut_into_messages() -> None:
    host = Host()
    notices = Notices(models_changed=True)
    error = UnknownModel(model="m" * 1000, available=["n" * 100] * 20)
    notices.started = [(i, error, "") for i in range(2000)]
    core = _hub(host).core
    host.session.outbox.deliver(1, 1, 1, 1, 0, payload=bytes(3 << 20))
    chunks, _ = host.session.outbox.take()
    frames = frames_of(core, chunks, notices, Numbering())
    assert max(f.ByteSize() for f in frames) < MAX_MESSAGE_BYTES
    assert [s.handle for f in frames for s in f.started] == list(range(2000))
    assert frames[0].models_changed
    first_delivery = next(i for i, f in enumerate(frames) if f.HasField("deliveries"))
    assert not any(f.started for f in frames[first_delivery + 1 :])
    few = frames_of(core, chunks, Notices(started=[(1, None, "")], models_changed=True), Numbering())
    assert len(few) == 1  # as ever, where there is room


def _hub(host: Host) -> Any:
    return CoreLoop(host.core)


def test_the_state_of_many_programs_fits_a_message() -> None:
    host = Host(max_programs=5000)
    guests = [host.start(name="n" * 300) for _ in range(PROGRAMS_SHOWN + 100)]
    for queue in range(1, 40):
        guests[-1].put(Op.CREATE_QUEUE, queue=queue)
    host.run()
    state = state_of(host.core)
    assert len(json.dumps(state)) < MAX_MESSAGE_BYTES
    assert (len(state["programs"]), state["programs_left_out"]) == (PROGRAMS_SHOWN, 100)
    assert state["programs"][-1]["id"] == guests[-1].program_id
    assert len(state["programs"][-1]["queues"]) == 16


async def test_a_disk_that_takes_its_time_holds_up_nobody(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = catalogue._write

    def slowly(path: Path, data: bytes) -> None:
        time.sleep(0.2)
        write(path, data)

    monkeypatch.setattr(catalogue, "_write", slowly)
    async with control(run_dir, catalogue_dir=run_dir / "c") as address, endpoints.make_channel(address) as channel:
        names: Any = control_pb2_grpc.CatalogueStub(channel)
        state: Any = control_pb2_grpc.ControlStub(channel)
        await state.State(control_pb2.StateRequest())
        putting = asyncio.ensure_future(
            names.Put(iter([control_pb2.PutRequest(entries=[entry(f"n{i}") for i in range(5)])])).read()
        )
        answered = 0
        while not putting.done():
            await state.State(control_pb2.StateRequest())
            answered += 1
            await asyncio.sleep(0.01)
        assert not any(e.number for e in (await putting).errors)
        assert answered > 10
        gone = asyncio.ensure_future(names.Put(iter([control_pb2.PutRequest(entries=[entry("last")])])).read())
        await asyncio.sleep(0.1)
        gone.cancel()  # its change is made all the same: disk and memory agree
        deleted = await names.Delete(control_pb2.DeleteRequest(tenant="t", name="last"))
        assert not deleted.error.number
        assert len(list((run_dir / "c").glob("*.inferlet"))) == 5


async def test_uploads_that_wait_are_bounded(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_catalogue, "MAX_UPLOADS", 6)
    async with control(run_dir) as address, endpoints.make_channel(address) as channel:
        stub: Any = control_pb2_grpc.CatalogueStub(channel)
        calls = []
        for _ in range(6):  # they have begun, and pause
            call = stub.Upload()
            await call.write(common_pb2.BlobChunk(digest="d", size=100, data=b"x"))
            calls.append(call)
        await asyncio.sleep(0.2)
        late = stub.Upload()
        assert isinstance(error_from_proto((await late).error), Overloaded)
        for call in calls:
            call.cancel()


async def test_a_runtime_that_can_not_be_written_to_is_let_go(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in the writer must end the stream: on a silent stream, programs would wait for ever."""
    async with control(run_dir) as address:
        runtime = Runtime(address)
        await runtime.hello()
        await runtime.read()  # its first frame of models

        def broken(*_: object) -> list[Any]:
            raise ValueError("a bug")

        monkeypatch.setattr(control_service, "frames_of", broken)
        async with worker(address):
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await runtime.drain()
        assert ended.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        monkeypatch.undo()
        again = Runtime(address)
        assert (await again.hello()).hello.protocol == 1
        await again.close()
        await runtime.close()
