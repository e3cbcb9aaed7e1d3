"""The gRPC service Control: streams of runtimes, the state of control, and actions on engines."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
from collections.abc import AsyncIterator
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio

from tartlet_common.errors.registry import (
    DeadlineExceeded,
    MalformedSubmission,
    ResumeRefused,
    TartletError,
    Unavailable,
    Undelivered,
    UnknownResource,
)
from tartlet_common.rpc import endpoints
from tartlet_common.rpc.error_proto import error_to_proto
from tartlet_common.rpc.frame_streams import FrameListener
from tartlet_common.rpc.link_stream import LinkStream
from tartlet_common.rpc.pairing import check_resumption, version_of
from tartlet_common.rpc.tenancy import scope_of
from tartlet_control.recovery.restorer import Restorer
from tartlet_control.serving import greeting
from tartlet_control.serving.catalogue import Catalogue
from tartlet_control.serving.core_loop import CoreLoop, RuntimeLink
from tartlet_control.serving.ends import in_place_of
from tartlet_control.serving.frames import found, frames_of, kept, orphans_of, start_request
from tartlet_control.serving.specs import known_model
from tartlet_control.serving.state import state_of
from tartlet_control.serving.tokenizers import Tokenizers
from tartlet_control.serving.watching.service import WatchService
from tartlet_control.tables.programs import RuntimeSession
from tartlet_protos import common_pb2, control_pb2

log = logging.getLogger("tartlet.control")

_PEER: Final = "runtime"
_CHUNK_BYTES: Final = 1 << 20
_POLL_S: Final = 0.05
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class ControlService(WatchService):
    """Serves one stream for each runtime. The parts of a frame take effect in field order."""

    def __init__(self, loop: CoreLoop, tokenizers: Tokenizers, catalogue: Catalogue, sockets: FrameListener) -> None:
        super().__init__(loop)
        self._restorer = Restorer(loop.core)
        self._tokenizers = tokenizers
        self._catalogue = catalogue
        self._sockets = sockets

    # ---- the stream ---------------------------------------------------------------------------------------------

    async def Connect(self, request_iterator: Any, context: Context) -> None:  # type: ignore[override]  # noqa: N802
        """Serve one runtime until either side ends the stream."""
        frame = await greeting.first_frame(context, greeting.HELLO_TIMEOUT_S)
        if frame is grpc.aio.EOF:
            return
        hello = control_pb2.ControlHello()
        try:
            link = self._greet(frame, hello)
        except ResumeRefused as e:
            log.info("runtime %s: %s", frame.hello.runtime_id[:64], e)
            hello.error.CopyFrom(error_to_proto(e))
            await context.write(control_pb2.ControlFrame(hello=hello))
            return
        except TartletError as e:
            await greeting.abort(context, e)
            return

        try:
            wanted = frame.hello.frame_socket
            async with self._sockets.beside(context, control_pb2.RuntimeFrame, wanted=wanted) as beside:
                hello.frames.CopyFrom(beside.offer)
                await context.write(control_pb2.ControlFrame(hello=hello))
                stream = await beside.joined()
                await self._serve(link, frame, link.begin(stream, frame.hello.resume.applied))
        except (MalformedSubmission, Undelivered) as e:
            log.error("runtime %s: %s", link.session.runtime_id, e)  # noqa: TRY400 - it names what is wrong
            link.link.give_up()
            await greeting.abort(context, e)
        except asyncio.CancelledError:
            if not link.closed:
                raise
            # Control has cut the stream. Without a status the runtime would go on sending.
            await greeting.abort(
                context, Unavailable(what="this stream", detail="it wasn't read, or another took its place")
            )
        except ConnectionError as e:
            log.info("runtime %s: %s", link.session.runtime_id, e)
        finally:
            self._loop.close_runtime(link)

    async def _serve(self, link: RuntimeLink, hello: Any, stream: LinkStream) -> None:
        """Take frames, `hello` first, and write what waits, until either side ends the stream."""
        write_all = functools.partial(self._write_all, link, stream)
        beside = [asyncio.ensure_future(work) for work in (link.flush_forever(write_all), self._fold(link, stream))]
        for task in beside:
            task.add_done_callback(link.writer_ended)
        try:
            self._take(link, hello)
            while not link.closed:
                if link.session.outbox or stream.waiting:
                    await link.flush(write_all)
                while not (link.has_room or link.link.resumes or link.closed):
                    link.drained.clear()
                    await link.drained.wait()
                frame = await stream.read()
                if frame is grpc.aio.EOF or link.closed:
                    break
                link.unapplied.append(frame)
                self._apply(link, stream)
                if link.unapplied:
                    link.check_bound(frame)
        finally:
            for task in beside:
                task.cancel()
            for outcome in await asyncio.gather(*beside, return_exceptions=True):
                if isinstance(outcome, Exception) and not isinstance(outcome, endpoints.STREAM_ENDED):
                    log.error("runtime %s: can't be served", link.session.runtime_id, exc_info=outcome)

    def _greet(self, frame: control_pb2.RuntimeFrame, reply: control_pb2.ControlHello) -> RuntimeLink:
        """Return the link for a runtime's new stream, and fill in the answer to its Hello."""
        if not frame.HasField("hello"):
            raise MalformedSubmission(detail="a runtime's first frame must say Hello")
        core, hello = self._core, frame.hello
        version = version_of(hello, _PEER)
        if not hello.runtime_id or not hello.incarnation:
            raise MalformedSubmission(detail="Hello without runtime_id or incarnation")
        greeting.check_id("runtime_id", hello.runtime_id)
        greeting.check_id("incarnation", hello.incarnation)
        self._loop.epochs.check(hello.runtime_id, hello.epoch, core.clock.now(), role=_PEER)
        if resumes := hello.HasField("resume"):
            session = self._resumed(hello)
        else:
            session = core.on_runtime(
                hello.runtime_id,
                hello.incarnation,
                hello.address,
                [start_request(p) for p in hello.programs],
                map(kept, hello.kept),
                hello.journals,
            )
            self._restorer.forget(session)
            instead = functools.partial(in_place_of, core, session)
            greeting.begin_link(core, session, version, control_pb2.ControlFrame, instead)
        link = self._loop.open_runtime(session, hello.epoch)
        greeting.answer(core, reply, version, core.settings.runtime_grace_s, link.link if resumes else None, _PEER)
        return link

    def _resumed(self, hello: control_pb2.RuntimeHello) -> RuntimeSession:
        """Return the session whose link continues.

        Raises:
            ResumeRefused: it can't; the runtime then says Hello anew.
        """
        session = self._core.sessions.get(hello.runtime_id)
        if session is not None and session.incarnation != hello.incarnation:
            session = None
        check_resumption(hello, None if session is None else session.link, self._core.incarnation, _PEER)
        assert session is not None
        log.info("runtime %s resumes behind frame %d", session.runtime_id, hello.resume.applied)
        return session

    def _apply(self, link: RuntimeLink, stream: LinkStream) -> None:
        """Take the frames that were read, as long as the runtime reads what these bring about.

        The other frames wait, as do frames behind a history that isn't folded yet. Their number is bounded, because the
        runtime keeps them until they are acknowledged.
        """
        while link.unapplied and link.takes_more and not self._restorer.waits(link.session):
            try:
                self._take(link, link.unapplied.popleft())
            except BaseException:
                link.link.give_up()  # else the frame, of which a part has taken effect, would come again
                raise
            stream.applied()

    async def _fold(self, link: RuntimeLink, stream: LinkStream) -> None:
        """Fold the histories that have come, in at most half of the time, and take the frames behind them."""
        while not link.closed:
            if self._restorer.waits(link.session):
                began_s = self._core.clock.now()
                folded = self._restorer.fold_next(link.session)
                self._loop.changed()
                await asyncio.sleep(self._core.clock.now() - began_s if folded else _POLL_S)
            else:
                link.folding.clear()
                self._apply(link, stream)
                await link.folding.wait()

    def _take(self, link: RuntimeLink, frame: control_pb2.RuntimeFrame) -> None:
        core, session = self._core, link.session
        if frame.journals:
            core.on_journals(session, frame.journals)
        for start in frame.starts:
            core.on_start(session, start_request(start))
        self._take_models(session, frame)
        for part in frame.histories:
            self._restorer.on_part(session, part.handle, part.data, more=part.more)
            link.folding.set()
        if frame.HasField("commands"):
            columns = frame.commands
            core.on_commands(session, columns.handles, columns.records, columns.payload)
        for end in frame.ends:
            core.on_end(session, end.handle, failed=end.failed, withdrawn=end.withdrawn, goes_on=end.goes_on)
        if frame.HasField("stored"):
            core.on_stored(session, frame.stored.handles, frame.stored.counts)
        if frame.stopping:
            core.on_stopping(session)
        if frame.found or frame.searched:
            core.takeovers.on_found(session, map(found, frame.found), is_last=frame.searched)
        if frame.kept:
            core.on_kept(session, map(kept, frame.kept))
        if not frame.more or core.takes_parts:
            self._loop.pump(own=link)

    def _take_models(self, session: RuntimeSession, frame: control_pb2.RuntimeFrame) -> None:
        """Take a runtime's models, and tell it control's from then on. Without models, commands or ends come next."""
        numbers = session.models
        if frame.models:
            self._restorer.on_models(session, map(known_model, frame.models))
        if frame.models or (numbers.awaited and (frame.HasField("commands") or frame.ends)):
            numbers.awaited = False
            session.outbox.notices.models_changed = True

    async def _write_all(self, link: RuntimeLink, stream: LinkStream) -> None:
        """Write what waits, in as few frames as fit. While too much is unacknowledged, the rest waits."""
        while not link.closed:
            if not link.link.full:
                if link.session.outbox:
                    self._send(link)
                    link.drained.set()
                    self._apply(link, stream)
                if link.session.held:
                    self._loop.changed()
            if not stream.waiting:
                return
            await stream.write_waiting()

    def _send(self, link: RuntimeLink) -> None:
        try:
            chunks, notices = link.session.outbox.take()
            notices.models_changed &= not link.session.models.awaited
            for frame in frames_of(self._core, chunks, notices, link.session.models):
                link.link.send(frame)
        except BaseException:
            link.link.give_up()  # what was taken is lost
            raise

    # ---- unary --------------------------------------------------------------------------------------------------

    async def State(self, request: control_pb2.StateRequest, context: Context) -> control_pb2.StateReply:  # noqa: N802
        """Return everything that `tartlet ps`, `top` and `doctor` show."""
        return control_pb2.StateReply(json=json.dumps(state_of(self._core, scope_of(context))))

    async def Locate(  # noqa: N802
        self, request: control_pb2.LocateRequest, context: Context
    ) -> control_pb2.LocateReply:
        """Return where programs run, how many pages they hold, and which runtimes are connected."""
        scope = scope_of(context)
        for program_id in request.program_ids:
            self._core.takeovers.recall(program_id, scope)
        if self._core.takeovers.orphans:
            self._loop.changed()
        found = [self._core.lifecycle.locate(i, scope) for i in request.program_ids]
        return control_pb2.LocateReply(
            addresses=[address for address, _ in found],
            pages=[pages for _, pages in found],
            runtimes=[s.address for s in self._core.sessions.values() if s.gone_since is None],
            orphans=[] if request.program_ids else orphans_of(self._core, scope),
            recovering=[self._core.takeovers.lacks_runtime(i) for i in request.program_ids],
            returning=self._core.lifecycle.keys.returning(self._core.clock.now()) or not self._core.takeovers.knows_all,
        )

    async def Cordon(self, request: control_pb2.EngineAction, context: Context) -> control_pb2.EngineActionReply:  # noqa: N802
        """Place no new programs on an engine."""
        return self._act(lambda: self._core.cordon(request.engine_id))

    async def Resume(self, request: control_pb2.EngineAction, context: Context) -> control_pb2.EngineActionReply:  # noqa: N802
        """Place new programs on an engine again."""
        return self._act(lambda: self._core.resume(request.engine_id))

    async def SetOrder(self, request: control_pb2.SetOrderRequest, context: Context) -> control_pb2.SetOrderReply:  # noqa: N802
        """Give a pool an order of programs, from its engines' next steps on, and a durability of later launches."""
        asked = request.order
        try:
            greeting.check_id("pool", asked.pool)
            self._core.orders.check_durability(asked.pool, asked.durability)
            self._core.set_order(
                asked.pool,
                asked.order,
                asked.quanta_s,
                asked.starved_at if asked.HasField("starved_at") else None,
                asked.placement,
                asked.short_tokens,
                preempt=asked.preempt,
                every=asked.every,
            )
            self._core.set_durability(asked.pool, asked.durability)
        except TartletError as e:
            return control_pb2.SetOrderReply(error=error_to_proto(e))
        self._loop.changed()
        return control_pb2.SetOrderReply()

    async def EndSession(  # noqa: N802
        self, request: control_pb2.EndSessionRequest, context: Context
    ) -> control_pb2.EndSessionReply:
        """End a session of a tenant, once its last run has ended; a session that isn't there has ended."""
        scope = scope_of(context)
        tenant = request.tenant or scope.tenant or ""
        if scope.allows(tenant):
            self._core.lifecycle.accounts.end_session(tenant, request.session)
        return control_pb2.EndSessionReply()

    async def Drain(self, request: control_pb2.EngineAction, context: Context) -> control_pb2.EngineActionReply:  # noqa: N802
        """Cordon an engine, wait for its programs to end, and let it go.

        The reply holds DeadlineExceeded if programs go on past `grace_s`.
        """
        reply = self._act(lambda: self._core.cordon(request.engine_id, drain=True))
        if reply.error.number:
            return reply
        engine = self._core.engines[request.engine_id]
        end = self._core.clock.now() + request.grace_s
        while self._core.engines.get(engine.id) is engine and engine.program_ids:
            if not self._core.clock.now() < end:  # also true if the grace is not a number
                left = DeadlineExceeded(deadline_s=request.grace_s)
                return control_pb2.EngineActionReply(error=error_to_proto(left))
            await asyncio.sleep(_POLL_S)
        return reply

    def _act(self, action: Any) -> control_pb2.EngineActionReply:
        try:
            action()
        except TartletError as e:
            return control_pb2.EngineActionReply(error=error_to_proto(e))
        self._loop.changed()
        return control_pb2.EngineActionReply()

    async def FetchBlob(  # noqa: N802
        self, request: control_pb2.BlobRequest, context: Context
    ) -> AsyncIterator[common_pb2.BlobChunk]:
        """Yield a tokenizer or a source in chunks."""
        data = self._tokenizers.get(request.digest)
        if data is None:
            data = self._catalogue.source(request.digest)
        if data is None:
            await greeting.abort(context, UnknownResource(kind="blob", id=request.digest[:64]))
            return
        for at in range(0, max(len(data), 1), _CHUNK_BYTES):
            part = data[at : at + _CHUNK_BYTES]
            if at:
                yield common_pb2.BlobChunk(data=part)
            else:
                yield common_pb2.BlobChunk(digest=request.digest, size=len(data), data=part)
