"""The gRPC service Engine: streams of workers, and their tokenizers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio

from tartlet_common.config.lists import listed
from tartlet_common.engine.pools import Home
from tartlet_common.engine.row_codec import labels_of, rows_of
from tartlet_common.engine.step import TABLES_SINCE
from tartlet_common.engine.step_codec import result_from_proto, step_to_proto
from tartlet_common.errors.registry import (
    Draining,
    EngineFailure,
    FrameTooLarge,
    InvalidArgument,
    MalformedSubmission,
    TartletError,
    Undelivered,
    WorkerLost,
)
from tartlet_common.rpc import endpoints
from tartlet_common.rpc.error_proto import error_from_proto, error_to_proto
from tartlet_common.rpc.frame_streams import FrameListener
from tartlet_common.rpc.link_stream import LinkStream
from tartlet_common.rpc.pairing import check_resumption, version_of
from tartlet_control.serving import greeting, homes
from tartlet_control.serving.core_loop import CoreLoop, EngineLink
from tartlet_control.serving.specs import adapter_report, spec_from_json
from tartlet_control.serving.tokenizers import Tokenizers
from tartlet_control.tables.engines import EngineState, engine_id_of
from tartlet_protos import common_pb2, engine_pb2, engine_pb2_grpc

log = logging.getLogger("tartlet.control")

_PEER: Final = "worker"
_CAUSE_CHARS = 1024
"""Characters of the cause that every program of a lost engine is told."""

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class EngineService(engine_pb2_grpc.EngineServicer):
    """Serves one stream for each worker: steps go down, results come up."""

    def __init__(self, loop: CoreLoop, tokenizers: Tokenizers, sockets: FrameListener) -> None:
        self._loop = loop
        self._sockets = sockets
        self._core = loop.core
        self._tokenizers = tokenizers
        self._shared_pools = frozenset(listed(loop.core.settings.shared_pools))

    async def Connect(self, request_iterator: Any, context: Context) -> None:  # type: ignore[override]  # noqa: N802
        """Serve one engine until either side ends the stream."""
        frame = await greeting.first_frame(context, greeting.HELLO_TIMEOUT_S)
        if frame is grpc.aio.EOF:
            return
        core, theirs = self._core, frame.hello
        hello = engine_pb2.EngineHello(protocol=endpoints.PROTOCOL_VERSION, incarnation=core.incarnation)
        resumes = theirs.HasField("resume")
        try:
            version = self._check_hello(frame)
            home = homes.home_of(theirs.pool, homes.worker_of(context), self._shared_pools)
            engine_id = engine_id_of(home, theirs.engine_id)
            self._loop.engine_epochs.check(engine_id, theirs.epoch, core.clock.now(), role=_PEER)
            engine = self._resumed(theirs, engine_id, home) if resumes else self._joined(theirs, version, home)
        except TartletError as e:
            log.warning("engine %s refused: %s", theirs.engine_id[:64], e)
            hello.error.CopyFrom(error_to_proto(e))
            await context.write(engine_pb2.EngineFrame(hello=hello))
            return
        link = self._loop.open_engine(engine, theirs.epoch)
        hello.keeps_rows = not resumes and engine.tables.kept
        greeting.answer(core, hello, version, core.settings.engine_grace_s, link.link if resumes else None, _PEER)
        try:
            wanted = frame.hello.frame_socket
            async with self._sockets.beside(context, engine_pb2.WorkerFrame, wanted=wanted) as beside:
                hello.frames.CopyFrom(beside.offer)
                await context.write(engine_pb2.EngineFrame(worker_incarnation=engine.incarnation, hello=hello))
                await self._serve(link, link.begin(await beside.joined(), theirs.resume.applied))
        except ConnectionError as e:
            log.warning("engine %s: %s", engine.id, e)
        except (MalformedSubmission, Undelivered, FrameTooLarge) as e:
            log.error("engine %s: %s", engine.id, e)  # noqa: TRY400 - it names what is wrong
            core.on_engine_gone(engine, WorkerLost(engine=f"{engine.id}: {e}"[:_CAUSE_CHARS]))
        finally:
            self._loop.close_engine(link)

    async def _serve(self, link: EngineLink, stream: LinkStream) -> None:
        """Read and write until either side ends the stream."""

        async def write_all() -> None:
            await self._write_all(link, stream)

        tasks = [
            asyncio.ensure_future(link.flush_forever(write_all)),
            asyncio.ensure_future(self._read(link, stream, write_all)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, FrameTooLarge):  # the step is lost, and with it what later steps rest on
                raise outcome
            if isinstance(outcome, Exception) and not isinstance(outcome, endpoints.STREAM_ENDED):
                log.error("engine %s: stream failed", link.engine.id, exc_info=outcome)

    def _check_hello(self, frame: engine_pb2.WorkerFrame) -> int:
        """Return the version of the protocol to speak."""
        if not frame.HasField("hello"):
            raise MalformedSubmission(detail="a worker's first frame must say Hello")
        hello = frame.hello
        version = version_of(hello, _PEER)
        if not hello.engine_id or not hello.incarnation:
            raise InvalidArgument(argument="hello", detail="without engine_id or incarnation")
        if "/" in hello.engine_id:  # control adds the owner in front of one
            raise InvalidArgument(argument="engine_id", detail=f"{hello.engine_id[:64]!r} has a slash")
        greeting.check_id("engine_id", hello.engine_id)
        greeting.check_id("incarnation", hello.incarnation)
        return version

    def _joined(self, hello: engine_pb2.WorkerHello, version: int, home: Home) -> EngineState:
        """Return a new engine. One of the same id is lost."""
        spec = spec_from_json(hello.spec_json)
        if spec.tokenizer_digest and not self._tokenizers.has(home.owner, spec.tokenizer_digest):
            raise InvalidArgument(argument="tokenizer_digest", detail="put the tokenizer before saying Hello")
        rows = rows_of(hello.rows, spec.num_pages)[0] if version >= TABLES_SINCE else {}
        engine = self._core.on_engine(hello.engine_id, hello.incarnation, spec, home, version)
        engine.bring_rows(rows)
        greeting.begin_link(self._core, engine, version, engine_pb2.EngineFrame)
        return engine

    def _resumed(self, hello: engine_pb2.WorkerHello, engine_id: str, home: Home) -> EngineState:
        """Return the engine whose link continues.

        Raises:
            ResumeRefused: it can't; the worker then joins anew.
        """
        engine = self._core.engines.get(engine_id)
        if engine is not None and (engine.incarnation, engine.home) != (hello.incarnation, home):
            engine = None
        check_resumption(hello, None if engine is None else engine.link, self._core.incarnation, _PEER)
        assert engine is not None
        log.info("engine %s resumes behind frame %d", engine.id, hello.resume.applied)
        return engine

    async def _read(self, link: EngineLink, stream: LinkStream, write_all: Callable[[], Awaitable[None]]) -> None:
        engine, core = link.engine, self._core
        while not link.closed:
            try:
                if (frame := await stream.read()) is grpc.aio.EOF or link.closed:
                    return
                self._take(engine, frame)
            except (EngineFailure, MalformedSubmission) as e:
                log.error("engine %s can't be trusted: %s", engine.id, e)  # noqa: TRY400 - it names what is wrong
                core.on_engine_gone(engine, WorkerLost(engine=f"{engine.id}: {e}"[:_CAUSE_CHARS]))
                return
            stream.applied()
            self._loop.pump(own=link)
            if link.has_work:
                await link.flush(write_all)

    def _take(self, engine: EngineState, frame: engine_pb2.WorkerFrame) -> None:
        core = self._core
        if frame.control_incarnation and frame.control_incarnation != core.incarnation:
            return  # meant for an earlier control
        try:
            for result in frame.results:
                core.on_result(engine, result_from_proto(result))
            for report in frame.grammars:
                core.on_grammar(engine, report.number, error_from_proto(report.error))
            if frame.HasField("adapters"):
                core.adapters.report(engine, adapter_report(engine.spec, frame.adapters))
        except BaseException:
            assert engine.link is not None
            engine.link.give_up()  # else the frame, of which a part has taken effect, would come again
            raise
        self._status(engine, frame)

    def _status(self, engine: EngineState, frame: engine_pb2.WorkerFrame) -> None:
        if frame.state == "draining" and engine.status != "draining":
            log.info("engine %s is draining, with %d programs", engine.id, len(engine.program_ids))
            self._core.cordon(engine.id, drain=True)
        elif frame.state == "overdue":
            log.warning("engine %s goes with %d programs: its grace is over", engine.id, len(engine.program_ids))
            self._core.on_engine_gone(engine, Draining(engine=engine.id, grace_s=frame.drain_grace_s))
        elif frame.state == "broken":
            cause = error_from_proto(frame.broken)
            log.error("engine %s is broken: %s", engine.id, cause)
            self._core.on_engine_gone(engine, WorkerLost(engine=f"{engine.id}: {cause}"[:_CAUSE_CHARS]))

    async def _write_all(self, link: EngineLink, stream: LinkStream) -> None:
        """Write the steps that wait. The last frame of a drained engine lets the engine go."""
        engine, send = link.engine, link.link.send
        while not link.closed:
            if not link.link.full:
                if forgotten := engine.labels.take_taken_back():  # ahead of the steps that change these pages
                    send(_rows(engine, {}, forgotten))
                steps, engine.outgoing = engine.outgoing, []
                for step in steps:
                    send(engine_pb2.EngineFrame(worker_incarnation=engine.incarnation, steps=[step_to_proto(step)]))
                if given := engine.labels.take_given():  # behind the steps that have filled them
                    send(_rows(engine, given))
                changes, engine.grammars.outgoing = engine.grammars.outgoing, []
                for change in changes:  # behind the steps, which may need what is forgotten
                    grammar = engine_pb2.GrammarFrame(number=change.number, kind=change.kind, text=change.text)
                    send(engine_pb2.EngineFrame(worker_incarnation=engine.incarnation, grammars=[grammar]))
                unload, engine.unload = engine.unload, []
                if unload:
                    send(engine_pb2.EngineFrame(worker_incarnation=engine.incarnation, unload=unload))
            if link.lets_go:
                engine.let_go = True
                send(engine_pb2.EngineFrame(worker_incarnation=engine.incarnation, drain=True))
            if not stream.waiting:
                return
            await stream.write_waiting()

    async def PutBlob(  # noqa: N802
        self, request_iterator: AsyncIterator[common_pb2.BlobChunk], context: Context
    ) -> engine_pb2.PutBlobReply:
        """Store a tokenizer for the worker's tenant."""
        worker = homes.worker_of(context)
        try:
            await self._tokenizers.receive(None if worker is None else worker.tenant, request_iterator)
        except TartletError as e:
            return engine_pb2.PutBlobReply(error=error_to_proto(e))
        return engine_pb2.PutBlobReply()


def _rows(engine: EngineState, given: Mapping[int, bytes], forgotten: Iterable[int] = ()) -> engine_pb2.EngineFrame:
    """Return the frame that tells a worker what pages hold, or that they will hold something else."""
    return engine_pb2.EngineFrame(worker_incarnation=engine.incarnation, rows=labels_of(given, forgotten))
