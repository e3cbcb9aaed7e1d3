"""Control as a process sees it: real gRPC over a Unix socket, a fake engine behind a real worker link."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest

from tartlet_common import abi
from tartlet_common.abi import Event, Op
from tartlet_common.errors import registry as errors
from tartlet_common.rpc import endpoints
from tartlet_common.rpc.error_proto import error_from_proto
from tartlet_control.serving import core_loop as hub
from tartlet_control.serving import greeting
from tartlet_protos import common_pb2, control_pb2, control_pb2_grpc, engine_pb2, engine_pb2_grpc
from tests.control.served import Runtime, control, worker


@pytest.fixture(autouse=True, params=[False, True], ids=["call", "socket"])
def _frame_socket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runtime, "frame_socket", request.param)


def decode_submission(tokens: int) -> bytes:
    w = abi.Writer()
    w.add(Op.ALLOC_KVPAGE, ticket=1, payload=abi.u32([0, 1]))
    w.add(Op.ALLOC_EMB, ticket=2, payload=abi.u32([0]))
    w.add(Op.ALLOC_SLOT, ticket=3, payload=abi.u32([0]))
    ticket = 3
    params = np.zeros(1, abi.SAMPLE_PARAMS)
    params["top_p"] = 1.0
    for i in range(tokens):
        w.add(Op.EMBED_TXT, ticket=ticket + 1, a=1, b=int(i > 0), payload=abi.u32([0, 0 if i else 5, i]))
        w.add(Op.FORWARD, ticket=ticket + 2, a=i, payload=abi.u32([2, 1, 2, 1, 0, 1, 0, 0, 1, 0]))
        w.add(Op.SAMPLE, ticket=ticket + 3, a=0, b=0, payload=params.tobytes())
        ticket += 3
    return w.finish()


def another_token(nth: int = 1) -> bytes:
    """A token behind `decode_submission(nth)`."""
    w = abi.Writer()
    ticket = 3 + 3 * nth
    params = np.zeros(1, abi.SAMPLE_PARAMS)
    params["top_p"] = 1.0
    w.add(Op.EMBED_TXT, ticket=ticket + 1, a=1, b=1, payload=abi.u32([0, 0, nth]))
    w.add(Op.FORWARD, ticket=ticket + 2, a=nth, payload=abi.u32([2, 1, 2, 1, 0, 1, 0, 0, 1, 0]))
    w.add(Op.SAMPLE, ticket=ticket + 3, a=0, b=0, payload=params.tobytes())
    return w.finish()


def test_tokens_come_back_over_the_wire(run_dir: Path) -> None:
    async def body() -> None:
        async with control(run_dir) as address, worker(address):
            rt = Runtime(address)
            hello = await rt.hello()
            assert hello.hello.protocol == 1
            (model,) = await rt.models()
            assert (model.name, model.ready, model.engines) == ("fake", True, 1)
            start = control_pb2.ProgramStart(handle=3, program_id="p")
            await rt.stream.write(control_pb2.RuntimeFrame(starts=[start]))
            assert (await rt.read()).started[0].error.number == 0
            await rt.send(3, decode_submission(6))
            rows = await rt.deliveries(6)
            assert [r[0] for r in rows] == [Event.RESULT] * 6
            state = json.loads((await rt.stub.State(control_pb2.StateRequest())).json)
            assert state["totals"]["sampled_tokens"] == 6
            assert state["programs"][0]["pages"] == 2
            await rt.stream.write(control_pb2.RuntimeFrame(ends=[control_pb2.ProgramEnd(handle=3)]))
            settled = (await rt.read()).settled[0]
            assert (settled.handle, settled.sampled_tokens, settled.peak_pages) == (3, 6, 2)
            state = json.loads((await rt.stub.State(control_pb2.StateRequest())).json)
            assert state["engines"][0]["pools"]["KV pages"]["held"] == 0
            blob = b"".join(
                [c.data async for c in rt.stub.FetchBlob(control_pb2.BlobRequest(digest=model.tokenizer_digest))]
            )
            assert hashlib.sha256(blob).hexdigest() == model.tokenizer_digest
            await rt.close()

    asyncio.run(body())


def test_no_step_is_formed_before_the_rest_of_an_answer_and_a_step_behind_which_nothing_waits_says_so(
    run_dir: Path,
) -> None:
    async def body() -> None:
        async with control(run_dir) as address, worker(address):
            rt = Runtime(address)
            await rt.hello()
            await rt.models()
            starts = [control_pb2.ProgramStart(handle=h, program_id=f"p{h}") for h in (3, 4)]
            await rt.stream.write(control_pb2.RuntimeFrame(starts=starts))
            assert len((await rt.read()).started) == 2
            await rt.send(3, decode_submission(1), more=True)
            await rt.send(4, decode_submission(1))
            frame = await rt.read()
            assert len(frame.deliveries.records) == 2 * abi.RECORD_BYTES  # both in one step
            assert frame.idle
            await rt.send(3, another_token(), more=True)
            await rt.stream.write(control_pb2.RuntimeFrame())  # that was all
            assert len((await rt.read()).deliveries.records) == abi.RECORD_BYTES
            await rt.close()

    asyncio.run(body())


def test_a_step_is_formed_of_a_part_where_programs_take_longer_to_come_back_than_a_step_costs(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "TICK_S", 60.0)  # it would have one formed

    async def body() -> None:
        async with control(run_dir) as address, worker(address):
            rt = Runtime(address)
            await rt.hello()
            await rt.models()
            starts = [control_pb2.ProgramStart(handle=h, program_id=f"p{h}") for h in (3, 4)]
            await rt.stream.write(control_pb2.RuntimeFrame(starts=starts))
            assert len((await rt.read()).started) == 2
            for said in (decode_submission(1), another_token(1)):
                await rt.send(3, said, more=True)
                await rt.send(4, said)
                assert len((await rt.read()).deliveries.records) == 2 * abi.RECORD_BYTES
                await asyncio.sleep(0.1)  # a fake step takes a hundredth of that
            await rt.send(3, another_token(2), more=True)
            async with asyncio.timeout(10):
                assert len((await rt.read()).deliveries.records) == abi.RECORD_BYTES
            await rt.close()

    asyncio.run(body())


def test_a_worker_that_goes_away_ends_its_programs(run_dir: Path) -> None:
    async def body() -> None:
        async with control(run_dir) as address:
            rt = Runtime(address)
            async with worker(address):
                await rt.hello()
                await rt.models()
                start = control_pb2.ProgramStart(handle=3, program_id="p")
                await rt.stream.write(control_pb2.RuntimeFrame(starts=[start]))
                await rt.send(3, decode_submission(2))
                await rt.deliveries(2)
            while not (frame := await rt.read()).kills:
                pass
            assert isinstance(error_from_proto(frame.kills[0].error), errors.WorkerLost)
            async with worker(address):
                (model,) = await rt.models()
                assert model.index == 0
            await rt.close()

    asyncio.run(body())


def test_a_runtime_that_goes_away_frees_its_pages(run_dir: Path) -> None:
    async def body() -> None:
        async with control(run_dir, runtime_grace_s=0.1) as address, worker(address):
            rt = Runtime(address)
            await rt.hello()
            await rt.models()
            await rt.stream.write(control_pb2.RuntimeFrame(starts=[control_pb2.ProgramStart(handle=3, program_id="p")]))
            await rt.send(3, decode_submission(2))
            await rt.deliveries(2)
            rt.stream.cancel()
            for _ in range(100):
                state = json.loads((await rt.stub.State(control_pb2.StateRequest())).json)
                if not state["programs"]:
                    break
                await asyncio.sleep(0.05)
            assert state["programs"] == []
            assert state["engines"][0]["pools"]["KV pages"]["held"] == 0
            await rt.close()

    asyncio.run(body())


def test_a_drained_engine_is_let_go(run_dir: Path) -> None:
    async def body() -> None:
        async with control(run_dir) as address, worker(address) as link:
            rt = Runtime(address)
            await rt.hello()
            await rt.models()
            link.drain()
            for _ in range(100):
                state = json.loads((await rt.stub.State(control_pb2.StateRequest())).json)
                if not state["engines"]:
                    break
                await asyncio.sleep(0.02)
            assert state["engines"] == []
            reply = await rt.stub.Cordon(control_pb2.EngineAction(engine_id="none"))
            assert isinstance(error_from_proto(reply.error), errors.UnknownResource)
            await rt.close()

    asyncio.run(body())


@pytest.mark.parametrize(
    ("hello", "error"),
    [
        (engine_pb2.WorkerHello(protocol=99, engine_id="e", incarnation="i"), errors.ProtocolMismatch),
        (engine_pb2.WorkerHello(protocol=1, engine_id="e", incarnation="i", spec_json="{}"), errors.InvalidArgument),
        (engine_pb2.WorkerHello(protocol=1, engine_id="e", incarnation="i", spec_json="]["), errors.InvalidArgument),
    ],
)
def test_a_bad_hello_is_refused(run_dir: Path, hello: engine_pb2.WorkerHello, error: type[errors.TartletError]) -> None:
    async def body() -> None:
        async with control(run_dir) as address, endpoints.make_channel(address) as channel:
            stub: Any = engine_pb2_grpc.EngineStub(channel)
            stream = stub.Connect()
            await stream.write(engine_pb2.WorkerFrame(hello=hello))
            reply = await asyncio.wait_for(stream.read(), 10)
            assert isinstance(error_from_proto(reply.hello.error), error)

    asyncio.run(body())


@pytest.mark.parametrize("stub", [control_pb2_grpc.ControlStub, engine_pb2_grpc.EngineStub])
def test_a_stream_that_never_says_hello_is_ended(run_dir: Path, stub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greeting, "HELLO_TIMEOUT_S", 0.2)

    async def body() -> None:
        async with control(run_dir) as address, endpoints.make_channel(address) as channel:
            silent = stub(channel).Connect()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await asyncio.wait_for(silent.read(), 5)
            assert "0.2" in (caught.value.details() or "")
            rt = Runtime(address)  # others are served before and after
            assert (await rt.hello()).hello.protocol == 1
            await asyncio.sleep(0.4)  # the limit is for the first frame alone
            state = json.loads((await rt.stub.State(control_pb2.StateRequest())).json)
            assert len(state["runtimes"]) == 1
            await rt.close()

    asyncio.run(body())


def test_a_blob_with_another_digest_is_refused(run_dir: Path) -> None:
    async def chunks() -> AsyncIterator[common_pb2.BlobChunk]:
        yield common_pb2.BlobChunk(digest="0" * 64, size=3, data=b"abc")

    async def body() -> None:
        async with control(run_dir) as address, endpoints.make_channel(address) as channel:
            stub: Any = engine_pb2_grpc.EngineStub(channel)
            reply = await stub.PutBlob(chunks())
            assert isinstance(error_from_proto(reply.error), errors.InvalidArgument)

    asyncio.run(body())


def test_a_frame_that_makes_no_sense_costs_its_stream_only(run_dir: Path) -> None:
    async def body() -> None:
        async with control(run_dir) as address, worker(address):
            bad, good = Runtime(address), Runtime(address)
            await bad.hello("bad")
            await bad.models()
            await bad.stream.write(
                control_pb2.RuntimeFrame(commands=control_pb2.Commands(handles=b"abc", records=b"x" * 33))
            )
            with pytest.raises(grpc.aio.AioRpcError) as e:
                await bad.drain()
            assert "columns" in str(e.value.details())
            assert (await good.hello("good")).hello.protocol == 1
            await bad.close()
            await good.close()

    asyncio.run(body())


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"\xff" * 100, "a frame of"), (b"\x04\0\0\0\xff\xff\xff\xff", "be read")],
    ids=["length", "message"],
)
def test_bytes_that_are_no_frames_cost_their_socket_only(run_dir: Path, data: bytes, said: str) -> None:
    async def body() -> None:
        async with control(run_dir) as address, worker(address), endpoints.make_channel(address) as channel:
            call: Any = control_pb2_grpc.ControlStub(channel).Connect()
            hello = control_pb2.RuntimeHello(protocol=1, runtime_id="bad", incarnation="i", frame_socket=True)
            await call.write(control_pb2.RuntimeFrame(hello=hello))
            offer = (await call.read()).hello.frames
            reader, writer = await asyncio.open_unix_connection(address.removeprefix("unix:") + ".frames")
            writer.write(len(offer.ticket).to_bytes(4, "little") + offer.ticket + data)
            await asyncio.wait_for(reader.read(), 5)
            with pytest.raises(grpc.aio.AioRpcError, match=said):
                await call.read()
            writer.close()
            good = Runtime(address)
            await good.hello("good")
            assert await good.models()
            await good.close()

    asyncio.run(body())


def test_the_catalogue_survives_a_restart(run_dir: Path) -> None:
    entry = control_pb2.CatalogueEntry(
        tenant="t",
        name="hello",
        source=common_pb2.Source(language=common_pb2.Source.PYTHON, filename="hello.py", data=b"print('hi')"),
    )

    async def body() -> None:
        directory = run_dir / "catalogue"
        async with control(run_dir, catalogue_dir=directory) as address, endpoints.make_channel(address) as channel:
            stub: Any = control_pb2_grpc.CatalogueStub(channel)
            reply = await stub.Put(
                iter([control_pb2.PutRequest(entries=[entry, control_pb2.CatalogueEntry(name="../x")])])
            ).read()
            assert [e.number for e in reply.errors] == [0, errors.InvalidSource.number]
            assert reply.digests[0] == hashlib.sha256(b"print('hi')").hexdigest()
        (directory / "broken.inferlet").write_bytes(b"\xff\xff")
        async with (
            control(run_dir, "d", catalogue_dir=directory) as address,
            endpoints.make_channel(address) as channel,
        ):
            stub = control_pb2_grpc.CatalogueStub(channel)
            got = await stub.Get(control_pb2.GetRequest(tenant="t", name="hello"))
            assert got.entry.source.data == b"print('hi')"
            by_digest = await stub.Get(control_pb2.GetRequest(tenant="t", digest=got.entry.source.digest))
            assert by_digest.entry.name == "hello"
            control_stub: Any = control_pb2_grpc.ControlStub(channel)
            blob = [c async for c in control_stub.FetchBlob(control_pb2.BlobRequest(digest=got.entry.source.digest))]
            assert b"".join(c.data for c in blob) == b"print('hi')"
            listed = await stub.List(control_pb2.CatalogueListRequest(tenant="t"))
            assert [(e.name, e.source.data) for e in listed.entries] == [("hello", b"")]
            assert not (await stub.List(control_pb2.CatalogueListRequest(tenant="other"))).entries
            assert not (await stub.Delete(control_pb2.DeleteRequest(tenant="t", name="hello"))).error.number
            gone = await stub.Get(control_pb2.GetRequest(tenant="t", name="hello"))
            assert isinstance(error_from_proto(gone.error), errors.UnknownInferlet)

    asyncio.run(body())


def test_of_a_runtimes_streams_that_begin_at_once_one_stays_and_the_others_are_told(run_dir: Path) -> None:
    async def body() -> None:
        async with control(run_dir) as address:
            for _ in range(5):
                runtimes = [Runtime(address) for _ in range(8)]
                await asyncio.gather(*(runtime.begin(str(n)) for n, runtime in enumerate(runtimes)))
                ends = {asyncio.ensure_future(runtime.end()) for runtime in runtimes}
                for _ in runtimes[1:]:
                    ended, ends = await asyncio.wait(ends, timeout=10, return_when=asyncio.FIRST_COMPLETED)
                    assert {end.result() for end in ended} <= {grpc.StatusCode.FAILED_PRECONDITION}
                    if len(ends) == 1:
                        break
                (last,) = ends
                assert not last.done()
                last.cancel()
                await asyncio.gather(*(runtime.close() for runtime in runtimes))

    asyncio.run(body())


def test_a_runtime_that_starts_anew_ends_its_earlier_stream(run_dir: Path) -> None:
    async def body() -> None:
        async with control(run_dir) as address, worker(address):
            before, now = Runtime(address), Runtime(address)
            await before.hello("one")
            await now.hello("two")
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
                await before.drain()
            assert before.call.done()
            await now.models()
            assert not now.call.done()
            await before.close()
            await now.close()

    asyncio.run(body())
