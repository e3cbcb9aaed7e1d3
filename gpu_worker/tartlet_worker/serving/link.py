"""The worker's stream to control: connect, send Hello, run steps, send results, and connect again after a break.

After a break the link with control continues: steps are computed meanwhile, and their results are delivered on the next
connection. If control has given the engine up or is a new one, a new link begins with empty pools. Each link has a
number, and results for an earlier link are dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from tartlet_common.clock import SystemClock
from tartlet_common.errors.registry import (
    FrameTooLarge,
    MalformedSubmission,
    ResumeRefused,
    StaleIncarnation,
    TartletError,
    Undelivered,
)
from tartlet_common.rpc import endpoints, error_proto
from tartlet_common.rpc.frame_streams import Joiner
from tartlet_common.rpc.link_stream import LinkStream
from tartlet_common.rpc.pairing import Dialling
from tartlet_common.rpc.resume import ResumableLink
from tartlet_protos import common_pb2, engine_pb2, engine_pb2_grpc
from tartlet_worker.engine import Engine
from tartlet_worker.serving.adapter_desk import AdapterDesk
from tartlet_worker.serving.engine_thread import EngineThread, Finished
from tartlet_worker.serving.grammar_desk import GrammarDesk
from tartlet_worker.serving.kept_rows import KeptRows

log = logging.getLogger("tartlet.worker")

BLOB_CHUNK_BYTES = 1 << 20
_BACKOFF_S = (0.02, 0.05, 0.1, 0.2, 0.3)  # by attempt; the last repeats
_SAID_AT_ATTEMPT = 4
_BEAT_EVERY_S = 0.25
FAREWELL_S = 1.0
"""How long a worker that ends waits for control to read the reason."""
_RESULTS_PER_FRAME_BYTES = 3 << 20  # below the 4 MiB a message may have
HELLO_TIMEOUT_S = 30.0
"""Seconds within which control must have answered a Hello; the tokenizer is sent before."""
_LAST_WORDS = {"broken", "overdue"}


class Link:
    """Serves one engine to control until the engine is drained, refused or broken.

    Args:
        engine: the loaded engine.
        address: control's address.
        tls: certificates for TCP addresses.
        ready: called once, when control accepts the first Hello.
        engine_id: the engine's name in control; empty for a random name.
        pool: the engine's pool, `TENANT/POOL`; empty for none.
        adapters_file: lists the engine's adapters, if these come and go.
    """

    def __init__(
        self,
        engine: Engine,
        address: str,
        tls: endpoints.Tls | None,
        ready: Callable[[], None],
        engine_id: str = "",
        pool: str = "",
        *,
        adapters_file: Path | None = None,
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
        self._clock = SystemClock()
        self._peer = Dialling(self._clock, engine_pb2.WorkerFrame)
        self._links = 0  # with control, until now
        self._connections = 0
        self._away_since: float | None = None
        self._outbox: list[engine_pb2.StepResultFrame] = []
        self._wake = asyncio.Event()
        self._draining = False
        self._overdue_s: float | None = None  # the grace, once a drain is past it
        self._broken: TartletError | None = None
        self._malformed: TartletError | None = None  # a frame of this link
        self._said: set[str] = set()  # states that control was told of on this link
        self._let_go = False  # control holds nothing of this engine any more
        self._thread = EngineThread(engine, asyncio.get_running_loop(), self._on_finished)
        self._rows = KeptRows(engine.spec.num_pages, self._thread.afterwards)
        self._grammars = GrammarDesk(engine, self._thread.afterwards, self._wake.set)
        self._adapters = AdapterDesk(engine, adapters_file, self._thread.afterwards, self._wake.set)

    async def run(self) -> None:
        """Serve until drained.

        Raises:
            TartletError: control refused the engine, the engine is broken, or its list of adapters can't be read.
        """
        self._thread.start()
        attempt = 0
        try:
            await self._adapters.begin()
            while True:
                before = self._connections
                try:
                    await self._connect_once()
                except ResumeRefused as e:
                    log.warning("the pools are reset: %s", e)
                    if not self._draining:
                        continue
                except Undelivered as e:
                    log.error("the link with control ends: %s", e)  # noqa: TRY400 - it names what is wrong
                    self._peer.drop()
                except (*endpoints.CALL_ERRORS, StaleIncarnation, TimeoutError) as e:
                    say = log.info if attempt == _SAID_AT_ATTEMPT else log.debug  # once an outage, not at a joint start
                    say("no connection to control at %s: %s", self._address, endpoints.detail(e))
                if self._broken is not None:
                    raise self._broken
                if self._let_go or (self._draining and not self._awaited):
                    return
                attempt = 0 if self._connections > before else attempt + 1
                if attempt:
                    self.on_state("control can't be reached")
                if await self._pause(_BACKOFF_S[min(attempt, len(_BACKOFF_S) - 1)]):
                    return
        finally:
            await self._adapters.end()
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
        """Wait before the next attempt; return whether a drain ends the attempts."""
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), seconds * random.uniform(0.8, 1.2))  # noqa: S311 - jitter
        return self._draining and not self._awaited

    @property
    def _awaited(self) -> bool:
        """Whether control may still wait for this engine to come back."""
        if not self._peer.resumes or self._away_since is None or self._overdue_s is not None:
            return False
        return self._clock.now() - self._away_since < self._peer.grace_s

    # ---- one connection -----------------------------------------------------------------------------------------

    async def _connect_once(self) -> None:
        async with endpoints.make_channel(self._address, self._tls, role="control") as channel:
            stub = engine_pb2_grpc.EngineStub(channel)
            stream: Any = None
            try:
                async with asyncio.timeout(HELLO_TIMEOUT_S):
                    anew = not self._peer.resumes
                    if anew:
                        await self._put_tokenizer(stub)
                    rows = await self._rows.all() if anew else None
                    stream = stub.Connect()
                    await stream.write(self._hello(rows))
                    hello = await stream.read()
                    if hello is grpc.aio.EOF or not hello.HasField("hello"):
                        return
                    self._greet(hello.hello)
                    stream = await self._joiner.join(stream, hello.hello.frames, engine_pb2.EngineFrame)
                await self._serve(stream, hello.hello.applied)
            finally:
                if stream is not None:
                    stream.cancel()
                self._peer.disconnected()
                if self._away_since is None:
                    self._away_since = self._clock.now()
                if self._broken is not None or not self._peer.resumes:
                    self.on_state("control can't be reached" if self._broken is None else "broken")

    async def _put_tokenizer(self, stub: Any) -> None:
        data, digest = self._engine.tokenizer_json(), self._engine.spec.tokenizer_digest
        if not digest:
            return
        reply = await stub.PutBlob(_chunks(digest, data))
        error = error_proto.error_from_proto(reply.error)
        if error is not None:
            raise error

    def _hello(self, rows: engine_pb2.RowLabels | None) -> engine_pb2.WorkerFrame:
        hello = engine_pb2.WorkerHello(
            engine_id=self._engine_id,
            incarnation=self._incarnation,
            spec_json=self._adapters.spec_json(),
            frame_socket=self._joiner.wanted,
            pool=self._pool,
            rows=rows,
        )
        self._peer.fill(hello)
        return engine_pb2.WorkerFrame(hello=hello)

    def _greet(self, hello: engine_pb2.EngineHello) -> None:
        """Take control's answer to the Hello. Start with empty pools, unless the link continues.

        Raises:
            ResumeRefused: the link can't continue.
            TartletError: control refuses the engine.
            ProtocolMismatch: control speaks no version of the protocol that this worker speaks.
        """
        if self._peer.answered(hello):
            log.info("control %s: the link continues behind frame %d", self._peer.incarnation[:8], hello.applied)
        else:
            self._links += 1
            self._outbox.clear()
            self._malformed = None
            self._said.clear()
            self._thread.reset(self._rows.begin_link(keep=hello.keeps_rows))
            self._grammars.begin_link(self._links)
            self._adapters.begin_link()
            log.info("control %s accepted %s", self._peer.incarnation[:8], self._engine_id)
        self._connections += 1
        self._away_since = None
        if self._ready is not None:
            self._ready()
            self._ready = None
        self.on_state("")

    async def _serve(self, stream: Any, applied: int) -> None:
        """Read and write, behind the frame that control has applied, until one side ends the stream."""
        assert self._peer.link is not None
        frames = LinkStream(self._peer.link, stream, self._wake.set, applied)
        self._wake.set()
        reader = asyncio.ensure_future(self._read(frames))
        writer = asyncio.ensure_future(self._write(frames, stream))
        watch = asyncio.ensure_future(_watch(frames))
        try:
            await asyncio.wait((reader, writer, watch), return_when=asyncio.FIRST_COMPLETED)
            if self._broken is not None or self._overdue_s is not None:  # control ends it when it has read why
                await asyncio.wait((reader,), timeout=FAREWELL_S)
        finally:
            for task in (reader, writer, watch):
                task.cancel()
            frames.close()
            outcomes = await asyncio.gather(reader, writer, watch, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, (MalformedSubmission, FrameTooLarge)):
                log.error("the link with control ends: %s", outcome)
                self._peer.drop()
            elif isinstance(outcome, Exception) and not isinstance(outcome, endpoints.CALL_ERRORS):
                raise outcome

    async def _read(self, frames: LinkStream) -> None:
        link = self._links
        while (frame := await frames.read()) is not grpc.aio.EOF:
            if not frame.worker_incarnation or frame.worker_incarnation == self._incarnation:
                if frame.HasField("rows"):
                    self._rows.take(frame.rows)
                for step in frame.steps:
                    self._thread.submit(link, step)
                self._grammars.take(frame.grammars)
                self._adapters.unload(frame.unload)
                # control holds nothing of this engine any more: we asked for that, or an operator did
                self._let_go |= frame.drain
            frames.applied()
            if self._let_go:
                self._draining = True
                frames.acknowledge()  # the writer then leaves
                await asyncio.sleep(FAREWELL_S)
                return

    async def _write(self, frames: LinkStream, stream: Any) -> None:
        while True:
            self._wake.clear()  # before looking at the state, so that a change during a write is seen next time
            self._say(frames.link)
            await frames.write_waiting()
            if self._said & _LAST_WORDS:
                await stream.done_writing()
                return
            if self._malformed is not None:  # only this link ends; the next one starts with empty pools
                log.error("a step of control's makes no sense, so the stream ends: %s", self._malformed)
                self._peer.drop()
                return
            if self._let_go:
                return
            await self._wake.wait()

    def _say(self, link: ResumableLink[Any]) -> None:
        """Put what control is to know into frames. While too much is unacknowledged, results wait."""
        if self._draining:
            self._say_once(link, "draining")
        if not link.full:
            for results in _split(self._take()):
                link.send(engine_pb2.WorkerFrame(control_incarnation=self._peer.incarnation, results=results))
            if reports := self._grammars.reports():
                link.send(engine_pb2.WorkerFrame(control_incarnation=self._peer.incarnation, grammars=reports))
            if report := self._adapters.report():
                link.send(engine_pb2.WorkerFrame(control_incarnation=self._peer.incarnation, adapters=report))
        if self._broken is not None:
            self._say_once(link, "broken", broken=error_proto.error_to_proto(self._broken))
        elif self._overdue_s is not None:
            self._say_once(link, "overdue", drain_grace_s=self._overdue_s)

    def _say_once(self, link: ResumableLink[Any], state: str, **fields: Any) -> None:
        if state not in self._said:
            self._said.add(state)
            link.send(engine_pb2.WorkerFrame(control_incarnation=self._peer.incarnation, state=state, **fields))

    def _take(self) -> list[engine_pb2.StepResultFrame]:
        taken, self._outbox = self._outbox, []
        return taken

    def _on_finished(self, report: Finished) -> None:
        """Take a report of the engine thread, on the event loop."""
        if report.broken is not None:
            self._broken = report.broken
            self.on_state("broken")
        if report.link == self._links and report.result is not None:
            self._outbox.append(report.result)
        if report.link == self._links and report.malformed is not None:
            self._malformed = report.malformed
        self._wake.set()


async def _watch(frames: LinkStream) -> None:
    """Give signs of life; return when nothing is heard from control any more."""
    while not frames.silent:
        await asyncio.sleep(_BEAT_EVERY_S)
        frames.beat()


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
