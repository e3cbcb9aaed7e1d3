"""Control's ends of links that resume: real gRPC, a runtime that the tests drive frame by frame, a real worker link."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest

from tartlet_common import abi
from tartlet_common.abi import Event, Op
from tartlet_common.clock import ManualClock, SystemClock
from tartlet_common.errors.registry import (
    InvalidArgument,
    MalformedSubmission,
    ResumeRefused,
    StaleIncarnation,
    Undelivered,
)
from tartlet_common.rpc import endpoints
from tartlet_common.rpc.aborts import ERROR_KEY
from tartlet_common.rpc.error_proto import error_from_proto
from tartlet_common.rpc.pairing import Dialling
from tartlet_common.rpc.resume import ATTEMPTS, Connection, ResumableLink
from tartlet_control.serving import greeting
from tartlet_protos import common_pb2, control_pb2, control_pb2_grpc, engine_pb2, engine_pb2_grpc
from tests.control.served import control, worker
from tests.control.serving.test_servers import another_token, decode_submission
from tests.runtime.fake_control import engine_spec

Frame = control_pb2.RuntimeFrame


class Peer:
    """A runtime that speaks the protocol with numbers, and breaks its connection when it is told to."""

    def __init__(self, address: str, incarnation: str = "i", epoch_s: float | None = None) -> None:
        self.channel = endpoints.make_channel(address)
        self.stub: Any = control_pb2_grpc.ControlStub(self.channel)
        clock = SystemClock() if epoch_s is None else ManualClock(start=epoch_s)
        self.dialling = Dialling(clock, Frame)
        self.incarnation = incarnation
        self.stream: Any = None
        self.connection: Connection[Any]
        self.rows: list[tuple[int, ...]] = []
        self.mute = False
        """Whether it acknowledges nothing."""
        self.unapplied = 0

    async def connect(self) -> bool:
        """Say Hello on a new stream. Returns whether the link continues."""
        self.stream = self.stub.Connect()
        hello = control_pb2.RuntimeHello(runtime_id="rt", incarnation=self.incarnation)
        self.dialling.fill(hello)
        await self.stream.write(Frame(hello=hello))
        frame = await asyncio.wait_for(self.stream.read(), 10)
        resumed = self.dialling.answered(frame.hello)
        self.connection = self.link.connect(frame.hello.applied)
        return resumed

    @property
    def link(self) -> ResumableLink[Any]:
        assert self.dialling.link is not None
        return self.dialling.link

    async def say(self, **parts: Any) -> None:
        self.link.send(Frame(**parts))
        await self.write()

    async def write(self) -> None:
        while (frame := self.connection.take()) is not None:
            await self.stream.write(frame)

    async def submit(self, handle: int, submission: bytes) -> None:
        batch = abi.decode(submission)
        handles = np.full(len(batch.records), handle, "<u4").tobytes()
        columns = control_pb2.Commands(handles=handles, records=batch.records.tobytes(), payload=batch.payload)
        await self.say(commands=columns)

    async def read(self) -> Any:
        """Take the next frame and apply it."""
        while True:
            frame = await asyncio.wait_for(self.stream.read(), 10)
            assert frame is not grpc.aio.EOF
            if self.link.received(frame):
                self.rows += np.frombuffer(frame.deliveries.records, abi.RECORD).tolist()
                if self.mute:
                    self.unapplied += 1
                else:
                    self.link.done()
                return frame

    async def until_rows(self, count: int) -> None:
        while len(self.rows) < count:
            await self.read()

    def cut(self) -> None:
        self.stream.cancel()

    async def state(self) -> Any:
        return json.loads((await self.stub.State(control_pb2.StateRequest())).json)

    async def until(self, **wanted: Any) -> Any:
        """Return the state once the runtime's row has these values."""
        async with asyncio.timeout(10):
            while True:
                state = await self.state()
                if state["runtimes"] and wanted.items() <= state["runtimes"][0].items():
                    return state
                await asyncio.sleep(0.02)

    async def begin(self, tokens: int) -> None:
        """Connect, start a program and let it decode."""
        assert not await self.connect()
        while not any(model.ready for model in (await self.read()).models):
            pass
        await self.say(starts=[control_pb2.ProgramStart(handle=3, program_id="p")])
        await self.submit(3, decode_submission(tokens))

    async def close(self) -> None:
        self.cut()
        await self.channel.close()


async def test_what_a_break_has_lost_comes_once_more_and_nothing_runs_twice(run_dir: Path) -> None:
    async with control(run_dir) as address, worker(address):
        peer = Peer(address)
        await peer.begin(2)
        await peer.until_rows(2)
        for nth in range(2, 7):
            await peer.submit(3, another_token(nth))
            await asyncio.sleep(0.02 * (nth % 2))
            peer.cut()  # the commands or the answer may be on their way
            await peer.until(connected=False)
            assert await peer.connect()
            await peer.write()
        await peer.until_rows(7)
        assert [row[0] for row in peer.rows] == [Event.RESULT] * 7
        assert [row[2] for row in peer.rows] == sorted({row[2] for row in peer.rows})
        assert (await peer.state())["programs"][0]["sampled_tokens"] == 7
        await peer.close()


async def test_a_frame_that_comes_twice_takes_effect_once_and_a_gap_ends_the_link(run_dir: Path) -> None:
    async with control(run_dir) as address, worker(address):
        peer = Peer(address)
        await peer.begin(1)
        await peer.until_rows(1)
        await peer.submit(3, another_token())
        again = Frame.FromString(peer.link._kept[-1][0].SerializeToString())
        await peer.stream.write(again)
        await peer.until_rows(2)
        assert (await peer.state())["programs"][0]["sampled_tokens"] == 2
        again.number += 5
        await peer.stream.write(again)
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await peer.until_rows(99)
        assert isinstance(error_of(ended.value), MalformedSubmission)
        with pytest.raises(ResumeRefused):
            await peer.connect()
        assert not await peer.connect()
        await peer.close()


async def test_of_many_attempts_at_once_one_stays_and_a_flood_leaves_nothing_behind(run_dir: Path) -> None:
    async with control(run_dir) as address, worker(address):
        peer = Peer(address)
        await peer.begin(3)
        await peer.until_rows(3)
        await peer.connect()
        await asyncio.sleep(0.1)
        before = len(asyncio.all_tasks())
        streams = []
        for _ in range(200):
            stream = peer.stub.Connect()
            hello = control_pb2.RuntimeHello(runtime_id="rt", incarnation="i")
            peer.dialling.fill(hello)
            await stream.write(Frame(hello=hello))
            streams.append(stream)
        ends = {asyncio.ensure_future(status(stream)) for stream in streams}
        while len(ends) > 1:
            ended, ends = await asyncio.wait(ends, timeout=10, return_when=asyncio.FIRST_COMPLETED)
            assert {end.result() for end in ended} <= {grpc.StatusCode.FAILED_PRECONDITION}
        (last,) = ends
        last.cancel()
        assert await peer.connect()
        await peer.submit(3, another_token(3))
        await peer.until_rows(4)
        for stream in streams:
            stream.cancel()
        async with asyncio.timeout(10):
            while len(asyncio.all_tasks()) > before + 5:  # noqa: ASYNC110 - tasks end by themselves
                await asyncio.sleep(0.02)
        assert (await peer.state())["programs"][0]["sampled_tokens"] == 4
        await peer.close()


async def test_answers_that_break_every_connection_end_their_program_alone(run_dir: Path) -> None:
    async with control(run_dir) as address, worker(address):
        peer = Peer(address)
        await peer.begin(1)
        await peer.until_rows(1)
        await peer.say(starts=[control_pb2.ProgramStart(handle=4, program_id="q")])
        while not (await peer.read()).started:
            pass
        peer.mute = True
        await peer.submit(3, another_token())
        for _ in range(ATTEMPTS):
            await peer.until_rows(2)
            del peer.rows[1:]
            peer.cut()
            await peer.until(connected=False)
            assert await peer.connect()
        peer.mute = False
        killed: dict[int, Any] = {}
        while not killed:
            killed |= {kill.handle: error_from_proto(kill.error) for kill in (await peer.read()).kills}
        assert {handle: type(error) for handle, error in killed.items()} == {3: Undelivered}
        await peer.say(ends=[control_pb2.ProgramEnd(handle=3, failed=True)])
        await peer.submit(4, decode_submission(2))
        await peer.until_rows(3)
        assert [p["id"] for p in (await peer.state())["programs"]] == ["q"]
        await peer.close()


async def test_a_step_that_breaks_every_connection_costs_its_engine(run_dir: Path) -> None:
    async with control(run_dir, engine_grace_s=30) as address, endpoints.make_channel(address) as channel:
        stub: Any = engine_pb2_grpc.EngineStub(channel)
        spec = json.dumps(asdict(engine_spec(tokenizer_digest="")))
        dialling = Dialling(SystemClock(), engine_pb2.WorkerFrame)

        async def join() -> tuple[Any, bool]:
            stream = stub.Connect()
            hello = engine_pb2.WorkerHello(engine_id="e", incarnation="i", spec_json=spec)
            dialling.fill(hello)
            await stream.write(engine_pb2.WorkerFrame(hello=hello))
            resumed = dialling.answered((await stream.read()).hello)
            assert dialling.link is not None
            dialling.link.connect(dialling.link.applied)
            return stream, resumed

        stream, _ = await join()
        peer = Peer(address)
        await peer.begin(1)
        steps, refused = 0, False
        while not refused:
            frame = await asyncio.wait_for(stream.read(), 10)
            if frame is not grpc.aio.EOF and not frame.steps:
                continue  # a sign of life
            steps += frame is not grpc.aio.EOF
            stream.cancel()
            try:
                stream, _ = await join()
            except ResumeRefused:
                refused = True
        assert steps == ATTEMPTS
        _, resumed = await join()
        assert not resumed  # anew, with empty pools
        await peer.close()


def error_of(ended: grpc.aio.AioRpcError) -> Any:
    data = dict(ended.trailing_metadata())[ERROR_KEY]
    return error_from_proto(common_pb2.Error.FromString(data))


async def status(stream: Any) -> grpc.StatusCode:
    with contextlib.suppress(grpc.aio.AioRpcError):
        while await stream.read() is not grpc.aio.EOF:
            pass
    code: grpc.StatusCode = await stream.code()
    return code


async def test_nothing_is_dispatched_for_a_runtime_that_acknowledges_nothing(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(greeting, "ResumableLink", functools.partial(ResumableLink, limit_bytes=3000))
    async with control(run_dir) as address, worker(address):
        peer = Peer(address)
        await peer.begin(1)
        await peer.until_rows(1)
        peer.mute = True
        await peer.submit(3, written_again(100))
        await peer.until(held=True)
        await asyncio.sleep(0.5)  # steps that were in flight end
        state = await peer.until(held=True)
        await asyncio.sleep(0.1)
        assert (await peer.until(held=True))["totals"] == state["totals"]
        assert 5 < state["totals"]["sampled_tokens"] < 90
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await peer.until_rows(101)
        assert 0 <= state["totals"]["sampled_tokens"] - len(peer.rows) <= 2  # the steps that were in flight
        peer.mute = False
        for _ in range(peer.unapplied):
            peer.link.done()
        await peer.until(connected=False)  # the read that was given up has cancelled the call
        assert await peer.connect()  # which acknowledges
        while len(peer.rows) < 101:
            await peer.read()
            await peer.stream.write(peer.connection.acknowledgement())
        assert [row[2] for row in peer.rows[1:]] == list(range(102, 402, 3))
        await peer.until(held=False)
        await peer.close()


def written_again(count: int) -> bytes:
    """Tokens behind `decode_submission(1)`, all into one slot."""
    w = abi.Writer()
    params = np.zeros(1, abi.SAMPLE_PARAMS)
    params["top_p"] = 1.0
    for ticket in range(100, 100 + 3 * count, 3):
        w.add(Op.EMBED_TXT, ticket=ticket, a=1, b=1, payload=abi.u32([0, 0, 1]))
        w.add(Op.FORWARD, ticket=ticket + 1, a=1, payload=abi.u32([2, 1, 2, 1, 0, 1, 0, 0, 1, 0]))
        w.add(Op.SAMPLE, ticket=ticket + 2, a=0, b=0, payload=params.tobytes())
    return w.finish()


async def test_a_late_resumption_is_refused_and_a_stale_incarnation_too(run_dir: Path) -> None:
    async with control(run_dir, runtime_grace_s=0.2) as address:
        peer = Peer(address, epoch_s=100.0)
        assert not await peer.connect()
        peer.cut()
        async with asyncio.timeout(10):
            while (await peer.state())["runtimes"]:  # noqa: ASYNC110 - another task gives it up
                await asyncio.sleep(0.02)
        with pytest.raises(ResumeRefused):
            await peer.connect()
        assert not await peer.connect()  # anew
        stale = Peer(address, "earlier", epoch_s=50.0)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stale.connect()
        assert isinstance(error_of(refused.value), StaleIncarnation)
        assert [r["connected"] for r in (await peer.state())["runtimes"]] == [True]
        later = Peer(address, "later", epoch_s=150.0)
        assert not await later.connect()
        for each in (peer, stale, later):
            await each.close()


@pytest.mark.parametrize("name", ["x" * 254, "a\nb"])
async def test_an_id_that_is_long_or_unprintable_is_refused(run_dir: Path, name: str) -> None:
    async with control(run_dir) as address:
        peer = Peer(address, incarnation=name)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await peer.connect()
        error = error_of(refused.value)
        assert isinstance(error, InvalidArgument)
        assert error.fields["argument"] == "incarnation"
        await peer.close()
