"""The worker's stream to control: connect, send Hello, run steps, send results, and connect again after a break.

Each connection has a number. Results for an earlier connection are dropped, and the pools are reset at every Hello,
because control forgets an engine when its stream ends, and a new control never knew the engine.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from typing import Any

import grpc
import grpc.aio

from tartlet_common.errors.registry import ProtocolMismatch, TartletError
from tartlet_common.rpc import endpoints, error_proto
from tartlet_common.rpc.frame_streams import Joiner
from tartlet_protos import common_pb2, engine_pb2, engine_pb2_grpc
from tartlet_worker.engine import Engine
from tartlet_worker.serving.engine_thread import EngineThread, Finished

log = logging.getLogger("tartlet.worker")

BLOB_CHUNK_BYTES = 1 << 20
_BACKOFF_S = (0.02, 0.05, 0.1, 0.2, 0.3)  # by attempt; the last repeats
_SAID_AT_ATTEMPT = 4
FAREWELL_S = 1.0
"""How long a worker that ends waits for control to read the reason."""
_RESULTS_PER_FRAME_BYTES = 3 << 20  # below the 4 MiB a message may have


class Link:
    """Serves one engine to control until the engine is drained, refused or broken.

    Args:
        engine: the loaded engine.
        address: control's address.
        tls: certificates for TCP addresses.
        ready: called once, when control accepts the first Hello.
        engine_id: the engine's name in control; empty for a random name.
        pool: the engine's pool, `TENANT/POOL`; empty for none.
    """

    def __init__(
        self,
        engine: Engine,
        address: str,
        tls: endpoints.Tls | None,
        ready: Callable[[], None],
        engine_id: str = "",
        pool: str = "",
    ) -> None:
        self._engine = engine
        self._address = address
        self._joiner = Joiner(address)
        self._tls = tls
        self._ready: Callable[[], None] | None = ready
        self.on_state: Callable[[str], None] = _nothing
        """Called with "" when control has accepted the engine, else with the reason why the engine gets no work."""
        self._incarnation = uuid.uuid4().hex
        self._pool = pool
        self._engine_id = engine_id or f"engine-{self._incarnation[:8]}"
        self._connection = 0
        self._control = ""  # incarnation of the control at the other end
        self._outbox: list[engine_pb2.StepResultFrame] = []
        self._wake = asyncio.Event()
        self._draining = False
        self._overdue_s: float | None = None  # the grace, once a drain is past it
        self._broken: TartletError | None = None
        self._malformed: TartletError | None = None  # a frame of this connection
        self._thread = EngineThread(engine, asyncio.get_running_loop(), self._on_finished)

    async def run(self) -> None:
        """Serve until drained.

        Raises:
            TartletError: control refused the engine, or the engine is broken.
        """
        self._thread.start()
        attempt = 0
        try:
            while True:
                before = self._connection
                try:
                    await self._connect_once()
                except endpoints.CALL_ERRORS as e:
                    say = log.info if attempt == _SAID_AT_ATTEMPT else log.debug  # once an outage, not at a joint start
                    say("no connection to control at %s: %s", self._address, endpoints.detail(e))
                if self._broken is not None:
                    raise self._broken
                if self._draining:
                    return
                attempt = 0 if self._connection > before else attempt + 1
                if await self._pause(_BACKOFF_S[min(attempt, len(_BACKOFF_S) - 1)]):
                    return
        finally:
            await self._thread.stop()

    def drain(self) -> None:
        """Take no new programs. `run` returns when control releases the engine or can't be reached."""
        self._draining = True
        self._wake.set()

    def end_drain(self, grace_s: float) -> None:
        """End a drain whose grace is over: tell control, then `run` returns, even if programs are left here."""
        self._overdue_s = grace_s
        self._wake.set()

    async def _pause(self, seconds: float) -> bool:
        """Wait before the next attempt; return whether a drain ended the wait."""
        self._wake.clear()
        try:
            await asyncio.wait_for(self._wake.wait(), seconds * random.uniform(0.8, 1.2))  # noqa: S311 - jitter
        except TimeoutError:
            return self._draining
        return self._draining

    # ---- one connection -----------------------------------------------------------------------------------------

    async def _connect_once(self) -> None:
        async with endpoints.make_channel(self._address, self._tls, role="control") as channel:
            stub = engine_pb2_grpc.EngineStub(channel)
            await self._put_tokenizer(stub)
            stream: Any = stub.Connect()
            try:
                await stream.write(self._hello())
                hello = await stream.read()
                await self._greet(hello)
                if hello is not grpc.aio.EOF:
                    stream = await self._joiner.join(stream, hello.hello.frames, engine_pb2.EngineFrame)
                await self._serve(stream)
            finally:
                stream.cancel()
                self.on_state("control can't be reached" if self._broken is None else "broken")

    async def _put_tokenizer(self, stub: Any) -> None:
        data, digest = self._engine.tokenizer_json(), self._engine.spec.tokenizer_digest
        if not digest:
            return
        reply = await stub.PutBlob(_chunks(digest, data))
        error = error_proto.error_from_proto(reply.error)
        if error is not None:
            raise error

    def _hello(self) -> engine_pb2.WorkerFrame:
        return engine_pb2.WorkerFrame(
            hello=engine_pb2.WorkerHello(
                protocol=endpoints.PROTOCOL_VERSION,
                engine_id=self._engine_id,
                incarnation=self._incarnation,
                spec_json=json.dumps(asdict(self._engine.spec)),
                frame_socket=self._joiner.wanted,
                pool=self._pool,
            )
        )

    async def _greet(self, frame: Any) -> None:
        """Check control's answer to the Hello, and start with empty pools.

        Raises:
            TartletError: control refuses the engine.
            ProtocolMismatch: control speaks another version of the protocol.
        """
        if frame is grpc.aio.EOF or not frame.HasField("hello"):
            return
        error = error_proto.error_from_proto(frame.hello.error)
        if error is not None:
            raise error
        if frame.hello.protocol != endpoints.PROTOCOL_VERSION:
            raise ProtocolMismatch(peer="control", theirs=frame.hello.protocol, ours=endpoints.PROTOCOL_VERSION)
        self._control = frame.hello.incarnation
        self._connection += 1
        self._outbox.clear()
        self._malformed = None
        self._thread.reset()
        log.info("control %s accepted %s", self._control[:8], self._engine_id)
        if self._ready is not None:
            self._ready()
            self._ready = None
        self.on_state("")

    async def _serve(self, stream: Any) -> None:
        """Read and write until one side ends the stream."""
        reader = asyncio.ensure_future(self._read(stream))
        writer = asyncio.ensure_future(self._write(stream))
        try:
            await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
            if self._broken is not None or self._overdue_s is not None:  # control ends it when it has read why
                await asyncio.wait((reader,), timeout=FAREWELL_S)
        finally:
            for task in (reader, writer):
                task.cancel()
            outcomes = await asyncio.gather(reader, writer, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception) and not isinstance(outcome, endpoints.CALL_ERRORS):
                raise outcome

    async def _read(self, stream: Any) -> None:
        connection = self._connection
        while (frame := await stream.read()) is not grpc.aio.EOF:
            if frame.worker_incarnation and frame.worker_incarnation != self._incarnation:
                continue  # for an earlier process of the same engine
            for step in frame.steps:
                self._thread.submit(connection, step)
            if frame.drain:  # control holds nothing of this engine any more: we asked for that, or an operator did
                self._draining = True
                return

    async def _write(self, stream: Any) -> None:
        told_draining = False
        while True:
            self._wake.clear()  # before looking at the state, so that a change during a write is seen next time
            if self._draining and not told_draining:
                told_draining = True
                await stream.write(engine_pb2.WorkerFrame(control_incarnation=self._control, state="draining"))
            for results in _split(self._take()):
                await stream.write(engine_pb2.WorkerFrame(control_incarnation=self._control, results=results))
            if self._broken is not None:
                frame = engine_pb2.WorkerFrame(control_incarnation=self._control, state="broken")
                frame.broken.CopyFrom(error_proto.error_to_proto(self._broken))
                await stream.write(frame)
                await stream.done_writing()
                return
            if self._overdue_s is not None:
                frame = engine_pb2.WorkerFrame(control_incarnation=self._control, state="overdue")
                frame.drain_grace_s = self._overdue_s
                await stream.write(frame)
                await stream.done_writing()
                return
            if self._malformed is not None:  # only this stream ends; the next one starts with empty pools
                log.error("a step of control's makes no sense, so the stream ends: %s", self._malformed)
                return
            await self._wake.wait()

    def _take(self) -> list[engine_pb2.StepResultFrame]:
        taken, self._outbox = self._outbox, []
        return taken

    def _on_finished(self, report: Finished) -> None:
        """Take a report of the engine thread, on the event loop."""
        if report.broken is not None:
            self._broken = report.broken
            self.on_state("broken")
        if report.connection == self._connection and report.result is not None:
            self._outbox.append(report.result)
        if report.connection == self._connection and report.malformed is not None:
            self._malformed = report.malformed
        self._wake.set()


def _nothing(_: str) -> None:
    """No-op callback."""


async def _chunks(digest: str, data: bytes) -> AsyncIterator[common_pb2.BlobChunk]:
    for at in range(0, max(len(data), 1), BLOB_CHUNK_BYTES):
        part = data[at : at + BLOB_CHUNK_BYTES]
        if at == 0:
            yield common_pb2.BlobChunk(digest=digest, size=len(data), data=part)
        else:
            yield common_pb2.BlobChunk(data=part)


def _split(results: list[engine_pb2.StepResultFrame]) -> list[list[engine_pb2.StepResultFrame]]:
    """Group results into frames that fit a message. One result is never split: `top_k_limit` bounds its size."""
    frames: list[list[engine_pb2.StepResultFrame]] = []
    size = _RESULTS_PER_FRAME_BYTES + 1
    for result in results:
        size += result.ByteSize()
        if size > _RESULTS_PER_FRAME_BYTES:
            frames.append([])
            size = result.ByteSize()
        frames[-1].append(result)
    return frames
