"""The worker's stream to control, against a small real control end on a Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tartlet_common.engine import step_codec
from tartlet_common.engine.step import Status, Step
from tartlet_common.errors.registry import EngineFailure, EngineMismatch
from tartlet_common.rpc import endpoints, error_proto
from tartlet_protos import engine_pb2, engine_pb2_grpc
from tartlet_worker.fake import FakeEngine, FakeOptions
from tartlet_worker.serving.link import Link
from tests.worker.steps import embed, forward, fwd, sample

OPTIONS = FakeOptions(page_size=4, num_pages=16, num_embeds=64, num_slots=16, break_token=200)


@dataclass
class ControlEnd(engine_pb2_grpc.EngineServicer):
    """Accepts engines, sends what a test puts, keeps what comes."""

    incarnation: str = "control-1"
    protocol: int = endpoints.OLDEST_PROTOCOL
    refuse: Any = None
    blobs: dict[str, bytes] = field(default_factory=dict)
    hellos: list[engine_pb2.WorkerHello] = field(default_factory=list)
    frames: asyncio.Queue[engine_pb2.WorkerFrame] = field(default_factory=asyncio.Queue)
    to_send: asyncio.Queue[engine_pb2.EngineFrame | None] = field(default_factory=asyncio.Queue)

    async def PutBlob(self, request_iterator: Any, context: Any) -> engine_pb2.PutBlobReply:
        chunks = [c async for c in request_iterator]
        self.blobs[chunks[0].digest] = b"".join(c.data for c in chunks)
        assert len(self.blobs[chunks[0].digest]) == chunks[0].size
        return engine_pb2.PutBlobReply()

    async def Connect(self, request_iterator: Any, context: Any) -> AsyncIterator[engine_pb2.EngineFrame]:
        first = await anext(aiter(request_iterator))
        self.hellos.append(first.hello)
        yield engine_pb2.EngineFrame(
            hello=engine_pb2.EngineHello(
                protocol=self.protocol,
                incarnation=self.incarnation,
                error=error_proto.error_to_proto(self.refuse),
            )
        )

        async def keep() -> None:
            async for frame in request_iterator:
                self.frames.put_nowait(frame)

        keeping = asyncio.ensure_future(keep())
        try:
            while (frame := await self.to_send.get()) is not None:
                yield frame
        finally:
            keeping.cancel()

    async def results(self, count: int) -> list[engine_pb2.StepResultFrame]:
        found: list[engine_pb2.StepResultFrame] = []
        while len(found) < count:
            frame = await self.frames.get()
            assert frame.control_incarnation == self.incarnation
            found.extend(frame.results)
        return found

    def step(self, number: int, *batches: Any, to: str | None = None) -> None:
        frame = engine_pb2.EngineFrame(worker_incarnation=self.hellos[-1].incarnation if to is None else to)
        frame.steps.append(step_codec.step_to_proto(Step(number, batches)))
        self.to_send.put_nowait(frame)


@dataclass
class Rig:
    end: ControlEnd
    link: Link
    engine: FakeEngine
    ready: list[bool]
    running: asyncio.Task[None]
    address: str

    async def until_hello(self, count: int = 1) -> None:
        async with asyncio.timeout(10):
            while len(self.end.hellos) < count:  # noqa: ASYNC110 - the server end has no event per Hello
                await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def rig(
    run_dir: Path, *, serve: bool = True, options: FakeOptions = OPTIONS, adapters_file: Path | None = None, **end: Any
) -> AsyncIterator[Rig]:
    control, engine, ready = ControlEnd(**end), FakeEngine(options), []
    address = f"unix:{run_dir}/control.sock"
    server = await _serve(control, address) if serve else None
    link = Link(engine, address, None, lambda: ready.append(True), adapters_file=adapters_file)
    running = asyncio.ensure_future(link.run())
    try:
        yield Rig(control, link, engine, ready, running, address)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        if server:
            await server.stop(0)


async def _serve(control: ControlEnd, address: str) -> grpc.aio.Server:
    return await endpoints.make_server(lambda s: engine_pb2_grpc.add_EngineServicer_to_server(control, s), address)


def decode_one(lane: int = 1) -> tuple[Any, ...]:
    return embed((lane, [0], [7], [0])), forward(fwd(lane, [], [0], [0], [1])), sample((lane, 1, 0))


async def test_hello_carries_the_spec_and_follows_the_tokenizer(run_dir: Path) -> None:
    async with rig(run_dir) as r:
        await r.until_hello()
        hello = r.end.hellos[0]
        assert (hello.protocol, hello.newest_protocol) == (endpoints.OLDEST_PROTOCOL, endpoints.PROTOCOL_VERSION)
        spec = json.loads(hello.spec_json)
        assert (spec["family"], spec["page_size"]) == ("fake", 4)
        assert r.end.blobs == {spec["tokenizer_digest"]: r.engine.tokenizer_json()}


async def test_steps_in_flight_are_answered_in_order(run_dir: Path) -> None:
    async with rig(run_dir) as r, asyncio.timeout(10):
        await r.until_hello()
        for number in range(1, 21):
            r.end.step(number, *decode_one())
        results = [step_codec.result_from_proto(f) for f in await r.end.results(20)]
        assert [x.number for x in results] == list(range(1, 21))
        assert {int(x.results[2].token[0]) for x in results} == {int(results[0].results[2].token[0])}
        assert results[0].computed_tokens == 1
        assert r.ready == [True]


async def test_frames_for_another_incarnation_are_dropped(run_dir: Path) -> None:
    async with rig(run_dir) as r, asyncio.timeout(10):
        await r.until_hello()
        r.end.step(1, *decode_one(), to="another")
        r.end.step(2, *decode_one())
        assert [f.number for f in await r.end.results(1)] == [2]


async def test_a_worker_dials_until_control_is_there_and_resets_for_a_new_one(run_dir: Path) -> None:
    async with rig(run_dir, serve=False) as r, asyncio.timeout(20):
        await asyncio.sleep(0.1)
        server = await _serve(r.end, r.address)
        await r.until_hello()
        r.end.step(1, embed((1, [0], [9999], [0])))  # poisons lane 1
        await r.end.results(1)
        await server.stop(0)
        r.end.incarnation = "control-2"
        server = await _serve(r.end, r.address)
        await r.until_hello(2)
        r.end.step(1, *decode_one())
        result = step_codec.result_from_proto((await r.end.results(1))[0])
        assert [int(b.status[0]) for b in result.results] == [Status.OK] * 3
        assert r.ready == [True]
        assert r.end.hellos[0].incarnation == r.end.hellos[1].incarnation
        await server.stop(0)


async def test_a_refused_engine_ends_with_controls_reason(run_dir: Path) -> None:
    refusal = EngineMismatch(field="page_size", model="fake", theirs=4, ours=16)
    async with rig(run_dir, refuse=refusal) as r, asyncio.timeout(10):
        with pytest.raises(EngineMismatch, match="page_size"):
            await r.running
        assert r.ready == []


async def test_a_broken_engine_tells_control_and_ends(run_dir: Path) -> None:
    async with rig(run_dir) as r, asyncio.timeout(10):
        await r.until_hello()
        r.end.step(1, embed((1, [0], [200], [0])))
        frame = await r.end.frames.get()
        assert frame.state == "broken"
        assert isinstance(error_proto.error_from_proto(frame.broken), EngineFailure)
        r.end.to_send.put_nowait(None)
        with pytest.raises(EngineFailure):
            await r.running


async def test_a_step_that_fails_for_a_reason_of_our_own_is_answered_too(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: engine_pb2.StepFrame) -> Step:
        raise TypeError("a bug")

    async with rig(run_dir) as r, asyncio.timeout(10):
        await r.until_hello()
        monkeypatch.setattr(step_codec, "step_from_proto", fails)
        r.end.step(1, *decode_one())
        frame = await r.end.frames.get()
        assert "a bug" in str(error_proto.error_from_proto(frame.broken))
        r.end.to_send.put_nowait(None)
        with pytest.raises(EngineFailure):
            await r.running


@pytest.mark.parametrize("seed", range(3))
async def test_a_step_of_random_bytes_costs_its_stream_only(run_dir: Path, seed: int) -> None:
    rng = random.Random(seed)
    async with rig(run_dir) as r, asyncio.timeout(10):
        await r.until_hello()
        batch = engine_pb2.BatchFrame(
            kind=rng.randrange(9), columns=[rng.randbytes(7) for _ in range(rng.randrange(14))]
        )
        step = engine_pb2.StepFrame(number=1, batches=[batch], clear_pages=rng.randbytes(seed))
        r.end.to_send.put_nowait(engine_pb2.EngineFrame(worker_incarnation=r.end.hellos[-1].incarnation, steps=[step]))
        await r.until_hello(2)
        r.end.step(1, *decode_one())  # the same worker goes on
        assert len(await r.end.results(1)) == 1
        assert not r.running.done()


async def test_a_result_that_comes_as_the_call_ends_does_not_end_the_worker(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(run_dir) as r, asyncio.timeout(10):
        serve = r.link._serve

        async def with_a_late_result(stream: Any, applied: int) -> None:
            def come(_: object) -> None:
                r.link._outbox.append(engine_pb2.StepResultFrame())
                r.link._wake.set()

            stream.add_done_callback(come)
            await serve(stream, applied)

        monkeypatch.setattr(r.link, "_serve", with_a_late_result)
        await r.until_hello()
        r.end.to_send.put_nowait(None)  # the call ends
        while len(r.end.hellos) < 3:
            await asyncio.sleep(0.01)
            r.end.to_send.put_nowait(None)
        assert not r.running.done()


async def test_draining_is_told_and_the_worker_leaves_when_control_lets_go(run_dir: Path) -> None:
    async with rig(run_dir) as r, asyncio.timeout(10):
        await r.until_hello()
        r.link.drain()
        assert (await r.end.frames.get()).state == "draining"
        r.end.step(1, *decode_one())  # its programs still run
        await r.end.results(1)
        r.end.to_send.put_nowait(engine_pb2.EngineFrame(drain=True))
        await r.running


async def test_a_drain_past_its_grace_says_so_and_ends(run_dir: Path) -> None:
    async with rig(run_dir) as r, asyncio.timeout(10):
        await r.until_hello()
        r.link.drain()
        assert (await r.end.frames.get()).state == "draining"
        r.link.end_drain(2.5)
        frame = await r.end.frames.get()
        assert (frame.state, frame.drain_grace_s) == ("overdue", 2.5)
        r.end.to_send.put_nowait(None)  # control ends the stream when it has read this
        await r.running


async def test_draining_without_a_control_ends_at_once(run_dir: Path) -> None:
    async with rig(run_dir, serve=False) as r, asyncio.timeout(5):
        await asyncio.sleep(0.05)
        r.link.drain()
        await r.running
