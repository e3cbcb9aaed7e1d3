"""The one stream to control: a turn's commands of all programs go up as one frame, results come down as one.

Reconnects for ever, with backoff. When the stream breaks, programs whose commands were sent end in ControlLost (their
pages went with it); the others go on, are announced in the next Hello, and their commands wait for it. Frames carry no
numbers, so even a control that only lost the connection can't say which commands it got: that is why engine state
never survives the stream.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import grpc

from tartlet_common.errors.registry import InternalError, ProtocolMismatch, TartletError, Unavailable
from tartlet_common.rpc.endpoints import CALL_ERRORS, PROTOCOL_VERSION, Dialer, detail
from tartlet_common.rpc.error_proto import error_from_proto
from tartlet_common.rpc.frame_streams import Joiner, Stream
from tartlet_common.rpc.tenancy import EVERYONE, Scope
from tartlet_protos import common_pb2, control_pb2, control_pb2_grpc
from tartlet_runtime.link.frames import Outbox, split_deliveries
from tartlet_runtime.program.driver import Driver
from tartlet_runtime.program.program import Program

log = logging.getLogger(__name__)

BACKOFF_S = (0.05, 0.1, 0.2, 0.5, 1.0)
HELLO_TIMEOUT_S = 5.0
LOCATE_TIMEOUT_S = 2.0
MAX_BLOB_BYTES = 256 << 20
_STARTS_BYTES = 2 << 20  # of one frame, well below the message limit
_KEPT_BYTES = 1 << 20  # beside them
_STARTS_BESIDE_COMMANDS = 16  # so that a full frame of commands stays below the message limit, as with
_BESIDE_COMMANDS_BYTES = 16 << 10  # so many bytes of them
_ENDS_A_FRAME = 1024  # for the same reason


class Programs(Protocol):
    """The table of programs, as the link sees it."""

    def get(self, handle: int) -> Program | None:
        """Return the live program of a handle."""

    def live(self) -> Iterable[Program]:
        """Return all programs that have not ended."""

    def control_back(self) -> list[control_pb2.ProgramStart]:
        """Return announcements of running programs, and queue waiting starts again."""

    def kept(self) -> list[control_pb2.KeptProgram]:
        """Return the ended programs whose output is kept."""

    def models_changed(self, models: Iterable[control_pb2.ModelInfo]) -> None:
        """Take over control's list of models."""


class ControlLink:
    """The client side of `Control.Connect`."""

    def __init__(self, control: Dialer, hello: control_pb2.RuntimeHello, driver: Driver, joiner: Joiner) -> None:
        """Start unconnected. `hello` identifies this runtime; its programs are filled in on each connection."""
        self._control = control
        self._joiner = joiner
        self._hello = hello
        self._driver = driver
        self.programs: Programs
        self.connected = False
        self.on_connected: Callable[[], None] = _nothing
        """Called when `connected` has changed."""
        self.control_incarnation = ""
        self._outbox = Outbox()
        self._held = False  # control was promised more
        self._starts: list[control_pb2.ProgramStart] = []
        self._ends: list[control_pb2.ProgramEnd] = []
        self._unsent: dict[int, Program] = {}
        self._frames: list[control_pb2.RuntimeFrame] = []
        self._writer: asyncio.Future[None] | None = None  # set while the writer waits for frames
        driver.send_commands = self.flush

    # ---- what programs and their table do ----

    def start(self, start: control_pb2.ProgramStart) -> None:
        """Ask control to start a program. `Program.started` gets the answer."""
        self._starts.append(start)
        self._driver.schedule()

    def commands(self, program: Program, count: int, records: bytes, payload: bytes) -> None:
        """Queue a program's records for the end of this turn."""
        self._outbox.add(program.handle, count, records, payload)
        self._unsent[program.handle] = program
        self._driver.schedule()

    def ended(self, program: Program, *, failed: bool) -> bool:
        """Tell control that a program has ended. Returns whether the program must wait for control's answer."""
        if not self.connected:
            self._forget(program)
            return False
        end = control_pb2.ProgramEnd(handle=program.handle, failed=failed, withdrawn=not program.accepted)
        self._ends.append(end)
        self._driver.schedule()
        return program.has_engine_state or bool(program.unsent_commands)

    def flush(self, more: bool = False) -> None:  # noqa: FBT001, FBT002 - the driver's only word
        """Turn queued records into frames, if the stream is up and has taken the last frames.

        With `more`, records that follow at once belong to the same group: control forms no step before they have come,
        unless the wait costs more.
        """
        if self._writer is None or self._writer.done() or not (self._has_words or (self._held and not more)):
            return
        try:
            self._make_frames(more=more)
        except Exception as e:  # our own bug: the stream ends of it, and with it what waits for these commands
            log.exception("commands that can't be sent")
            self._writer.set_exception(Unavailable(what="control", detail=f"commands that can't be sent: {e!r}"))
        else:
            self._writer.set_result(None)

    def _make_frames(self, *, more: bool) -> None:
        before = len(self._frames)
        while len(self._starts) > _STARTS_BESIDE_COMMANDS or (
            how_many_fit(self._starts, _BESIDE_COMMANDS_BYTES) < len(self._starts)
        ):
            fit = how_many_fit(self._starts)
            self._frames.append(control_pb2.RuntimeFrame(starts=self._starts[:fit]))
            self._starts = self._starts[fit:]
        frame = control_pb2.RuntimeFrame()
        if self._starts:
            frame.starts.extend(self._starts)
            self._starts = []
        for program in self._unsent.values():
            program.has_engine_state = True
            program.unsent_commands = 0
        for i, columns in enumerate(self._outbox.take()):
            if i:
                self._frames.append(frame)
                frame = control_pb2.RuntimeFrame()
            commands = frame.commands
            commands.handles, commands.records, commands.payload = columns
        ends, self._ends = self._ends, []
        frame.ends.extend(ends[:_ENDS_A_FRAME])
        for at in range(_ENDS_A_FRAME, len(ends), _ENDS_A_FRAME):
            self._frames.append(frame)
            frame = control_pb2.RuntimeFrame(ends=ends[at : at + _ENDS_A_FRAME])
        self._unsent = {}
        if frame.ByteSize() or (self._held and not more):
            self._frames.append(frame)
        for earlier in self._frames[before:]:
            earlier.more = True
        if self._frames:
            self._frames[-1].more = self._held = more

    @property
    def _has_words(self) -> bool:
        return bool(self._starts or self._ends or self._outbox.commands)

    # ---- the stream ----

    @property
    def _stub(self) -> control_pb2_grpc.ControlAsyncStub:
        return control_pb2_grpc.ControlStub(self._control.channel)

    async def run(self) -> None:
        """Keep the stream up until cancelled."""
        attempt = 0
        while True:
            try:
                async with asyncio.TaskGroup() as tasks:
                    stream: Any = self._stub.Connect()
                    try:
                        offer = await self._greet(stream)
                        stream = await self._joiner.join(stream, offer, control_pb2.ControlFrame)
                        attempt = 0
                        writing = tasks.create_task(self._write(stream))
                        try:
                            await self._read(stream)
                        finally:
                            writing.cancel()
                    finally:
                        stream.cancel()
            except* (*CALL_ERRORS, TartletError, TimeoutError) as group:
                if attempt == 0:
                    log.warning("control: %s", _first(group))
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # the group above forgets it where its writer has failed too
                raise asyncio.CancelledError
            self._broken()
            await self._control.renew()
            await asyncio.sleep(BACKOFF_S[min(attempt, len(BACKOFF_S) - 1)])
            attempt += 1

    async def _greet(self, call: Stream) -> common_pb2.FrameSocketOffer:
        hello = control_pb2.RuntimeHello()
        hello.CopyFrom(self._hello)
        hello.frame_socket = self._joiner.wanted
        self._starts = []
        kept = self.programs.kept()
        fit = how_many_fit(kept, _KEPT_BYTES)
        hello.kept.extend(kept[:fit])
        while kept := kept[fit:]:
            fit = how_many_fit(kept, _KEPT_BYTES)
            self._frames.append(control_pb2.RuntimeFrame(kept=kept[:fit]))
        running = self.programs.control_back()
        fit = how_many_fit(running)
        hello.programs.extend(running[:fit])
        self._starts = running[fit:] + self._starts  # these have no engine state, so a start says as much as Hello
        await call.write(control_pb2.RuntimeFrame(hello=hello))
        async with asyncio.timeout(HELLO_TIMEOUT_S):
            frame = await self._next(call)
        if frame is None:
            raise Unavailable(what="control", detail="it closed the stream")
        if frame.hello.protocol != PROTOCOL_VERSION:
            raise ProtocolMismatch(peer="control", theirs=frame.hello.protocol, ours=PROTOCOL_VERSION)
        self.control_incarnation = frame.hello.incarnation
        self.connected = True
        get = self.programs.get
        gone = [start.handle for start in running if get(start.handle) is None]
        self._ends += [control_pb2.ProgramEnd(handle=handle, failed=True) for handle in gone]
        self._starts = [start for start in self._starts if get(start.handle) is not None]
        self.on_connected()
        log.info("connected to control %s", self.control_incarnation[:8])
        self._take(frame)
        return frame.hello.frames

    async def _read(self, stream: Stream) -> None:
        while (frame := await self._next(stream)) is not None:
            self._take(frame)
            self._driver.turn_now()
            if self._frames:
                await asyncio.sleep(0)  # they leave before the next is asked for, which takes as long as to write one
        raise Unavailable(what="control", detail="it closed the stream")

    async def _next(self, stream: Stream) -> control_pb2.ControlFrame | None:
        frame = await stream.read()
        return frame if isinstance(frame, control_pb2.ControlFrame) else None  # else: grpc.aio.EOF

    async def _write(self, stream: Stream) -> None:
        while True:
            if not self._frames:
                self._writer = asyncio.get_running_loop().create_future()
                if self._has_words or self._held:
                    self._driver.schedule()
                await self._writer
            frames, self._frames = self._frames, []
            for frame in frames:
                await stream.write(frame)

    def _take(self, frame: control_pb2.ControlFrame) -> None:
        try:
            self._handle(frame)
        except TartletError:
            raise
        except Exception as e:  # a frame that makes no sense costs the stream, not the role
            log.exception("control sent a frame that can't be used")
            raise Unavailable(what="control", detail=f"a frame that can't be used: {e!r}") from e

    def _handle(self, frame: control_pb2.ControlFrame) -> None:
        get = self.programs.get
        if frame.models_changed:
            self.programs.models_changed(frame.models)
        for started in frame.started:
            program = get(started.handle)
            if program is not None:
                _tell(program, program.started, error_from_proto(started.error), started.existing_program_id)
        if frame.HasField("deliveries"):
            for handle, count, records, payload in split_deliveries(frame.deliveries):
                program = get(handle)
                if program is not None:  # else it has ended meanwhile, and nobody is left to be told
                    _tell(program, program.intake, count, records, payload)
                if frame.idle:
                    self._driver.hurry()
        for kill in frame.kills:
            program = get(kill.handle)
            if program is not None:
                _tell(program, program.end, error_from_proto(kill.error))
        for settled in frame.settled:
            program = get(settled.handle)
            if program is not None:
                _tell(program, program.settled, settled)

    def _broken(self) -> None:
        if self.connected:
            self.connected = False
            self.on_connected()
        self._writer = None
        self._held = False
        self._frames, self._ends = [], []  # a new Hello announces only who still runs
        for program in list(self.programs.live()):
            program.control_lost()

    def _forget(self, program: Program) -> None:
        if self._unsent.pop(program.handle, None) is not None:
            self._outbox.forget(program.handle)

    # ---- calls beside the stream ----

    async def fetch(self, digest: str) -> bytes:
        """Return a blob by its digest.

        Raises:
            Unavailable: control can't be reached, or doesn't have it.
        """
        parts: list[bytes] = []
        size = 0
        try:
            async for chunk in self._stub.FetchBlob(control_pb2.BlobRequest(digest=digest), wait_for_ready=True):
                parts.append(chunk.data)
                size += len(chunk.data)
                if size > MAX_BLOB_BYTES:
                    raise Unavailable(what=f"blob {digest[:12]}", detail=f"it is larger than {MAX_BLOB_BYTES} bytes")
        except grpc.RpcError as e:
            raise Unavailable(what=f"blob {digest[:12]}", detail=detail(e)) from e
        return b"".join(parts)

    async def locate(self, program_ids: Sequence[str], scope: Scope = EVERYONE) -> control_pb2.LocateReply:
        """Return where programs run, as far as `scope` may know, and which runtimes there are.

        Raises:
            Unavailable: control can't be reached.
        """
        if not self.connected:
            raise Unavailable(what="control", detail="it knows where programs run, and can't be reached")
        try:
            request = control_pb2.LocateRequest(program_ids=program_ids)
            reply: control_pb2.LocateReply = await self._stub.Locate(
                request, timeout=LOCATE_TIMEOUT_S, metadata=scope.metadata
            )
        except grpc.RpcError as e:
            raise Unavailable(what="control", detail=detail(e)) from e
        return reply

    async def state_json(self, scope: Scope = EVERYONE) -> str:
        """Return control's State reply, "" while control can't be reached."""
        if not self.connected:
            return ""
        try:
            reply = await self._stub.State(control_pb2.StateRequest(), timeout=2.0, metadata=scope.metadata)
        except grpc.RpcError:
            return ""
        return str(reply.json)


def how_many_fit(
    items: Sequence[control_pb2.ProgramStart] | Sequence[control_pb2.KeptProgram], limit: int = _STARTS_BYTES
) -> int:
    """Return how many of the first ones one message carries."""
    size = 0
    for count, item in enumerate(items):
        size += item.ByteSize() + 8
        if size > limit:
            return max(1, count)
    return len(items)


def _tell(program: Program, method: Callable[..., None], *args: object) -> None:
    """Call a program's method; a bug that shows there is the end of that program, not of the stream and so of all."""
    try:
        method(*args)
    except Exception as e:
        log.exception("program %s", program.program_id)
        program.end(InternalError(detail=repr(e)))


def _first(group: BaseExceptionGroup[BaseException]) -> str:
    error = group.exceptions[0]
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return detail(error)


def _nothing() -> None:
    """Nobody wants to know."""
