"""The one stream to control: a turn's commands of all programs go up as one frame, results come down as one.

Reconnects for ever, with backoff. After a break the link with control continues, so that no frame is lost and none is
applied twice. If control has given this runtime up or is a new one, the next Hello announces the programs. Their
histories follow, of which control makes their state again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

from tartlet_common.clock import Clock, SystemClock
from tartlet_common.errors.registry import TartletError, Unavailable
from tartlet_common.rpc.endpoints import CALL_ERRORS, Dialer, detail
from tartlet_common.rpc.frame_streams import Joiner
from tartlet_common.rpc.link_stream import LinkStream
from tartlet_common.rpc.pairing import Dialling
from tartlet_protos import control_pb2
from tartlet_runtime.link.announcing import Announcement, frames_of_histories, how_many_fit
from tartlet_runtime.link.beside import Beside
from tartlet_runtime.link.control_calls import ControlCalls
from tartlet_runtime.link.frames import Outbox
from tartlet_runtime.link.incoming import Programs, take
from tartlet_runtime.link.orphans import awaits_settlement, control_lost
from tartlet_runtime.link.undelivered import in_place_of
from tartlet_runtime.program.driver import Driver
from tartlet_runtime.program.program import Program

log = logging.getLogger(__name__)

BACKOFF_S = (0.05, 0.1, 0.2, 0.3)  # by attempt; the last repeats
HELLO_TIMEOUT_S = 5.0
BEAT_EVERY_S = 0.25
_STARTS_BESIDE_COMMANDS = 16  # so that a full frame of commands stays below the message limit, as with
_BESIDE_COMMANDS_BYTES = 16 << 10  # so many bytes of them
_ENDS_A_FRAME = 1024  # for the same reason


class ControlLink(ControlCalls):
    """The client side of `Control.Connect`."""

    def __init__(
        self,
        control: Dialer,
        hello: control_pb2.RuntimeHello,
        driver: Driver,
        joiner: Joiner,
        clock: Clock | None = None,
    ) -> None:
        """Start unconnected. `hello` identifies this runtime; its programs are filled in where a link begins."""
        super().__init__(control)
        self._joiner = joiner
        self._hello = hello
        self._driver = driver
        self.programs: Programs
        self.on_connected: Callable[[], None] = _nothing
        """Called when `connected` has changed."""
        self.on_lost: Callable[[], None] = _nothing
        """Called when the link can't continue, before what control had asked for is asked for by the next one."""
        self._clock = clock or SystemClock()
        self._peer = Dialling(self._clock, control_pb2.RuntimeFrame, self._in_place_of)
        self._away_since: float | None = None
        self._outbox = Outbox()
        self._held = False  # control was promised more
        self._starts: list[control_pb2.ProgramStart] = []
        self._again: list[control_pb2.ProgramStart] = []  # of programs with an end among `_ends`
        self._ends: list[control_pb2.ProgramEnd] = []
        self._unsent: dict[int, Program] = {}
        self._histories: list[control_pb2.RuntimeFrame] = []  # of programs whose states control is to make
        self._beside = Beside(self._clock.now)
        self._writer: asyncio.Future[None] | None = None  # set while the writer waits for frames
        driver.send_commands = self.flush

    # ---- what programs and their table do ----

    def start(self, start: control_pb2.ProgramStart) -> None:
        """Ask control to start a program. `Program.started` gets the answer."""
        (self._again if self._ends else self._starts).append(start)
        self._driver.schedule()

    def commands(self, program: Program, count: int, records: bytes, payload: bytes) -> None:
        """Queue a program's records for the end of this turn."""
        program.history.sent(records, payload)
        self._outbox.add(program.handle, count, records, payload)
        self._unsent[program.handle] = program
        self._driver.schedule()

    def ended(self, program: Program, *, failed: bool) -> bool:
        """Tell control that a program has ended. Returns whether the program must wait for control's answer.

        Commands that were held back for a journal which is lost never leave, and so have no answer.
        """
        if not self.connected and not self._peer.resumes:
            if awaits_settlement(program):
                return True  # the next control is told of the end
            self._forget(program)
            return False
        end = control_pb2.ProgramEnd(
            handle=program.handle, failed=failed, withdrawn=not program.accepted, goes_on=program.goes_on
        )
        self._ends.append(end)
        self._driver.schedule()
        return program.has_engine_state or program.handle in self._unsent

    def remember(self, program: Program) -> None:
        """Tell control all that a program has sent and was told, before what it sends from now on."""
        self._histories += frames_of_histories(self.programs, [program])
        self._driver.schedule()

    def found(self, journals: Sequence[control_pb2.FoundJournal]) -> None:
        """Answer control's search for journals."""
        self._beside.found = list(journals)
        self._driver.schedule()

    def stored(self, program: Program, heard: int) -> None:
        """Tell control soon that so many of its records to a program are stored."""
        self._beside.stored[program.handle] = heard

    def tend(self) -> None:
        """Tell what has waited for a frame. Call this a few times a second."""
        if self.connected and self._beside.is_due(self.programs.journals):
            self._driver.schedule()

    async def hand_over(self, wait_s: float) -> bool:
        """Ask control to name new owners for all programs that can begin again. Returns whether it has heard that."""
        link = self._peer.link
        if not self.connected or link is None:
            return False
        self._beside.stopping = True
        self.flush()
        last = link.last
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while link.acknowledged < last and not link.lost:  # noqa: ASYNC110 - frames tell it
                    await asyncio.sleep(0.005)
        return link.acknowledged >= last and not link.lost

    def flush(self, more: bool = False) -> None:  # noqa: FBT001, FBT002 - the driver's only word
        """Turn queued records into frames, if the stream is up and has taken the last frames.

        While control leaves too much unacknowledged, records wait: programs may have a bounded number of them.
        With `more`, records that follow at once belong to the same group: control forms no step before they have come,
        unless the wait costs more.
        """
        if self._writer is None or self._writer.done() or not (self._has_words or (self._held and not more)):
            return
        link = self._peer.link
        if link is None or link.full:
            return
        try:
            for frame in self._make_frames(more=more):
                link.send(frame)
        except Exception as e:  # our own bug: the stream ends of it, and with it what waits for these commands
            log.exception("commands that can't be sent")
            self._peer.drop()
            self._writer.set_exception(Unavailable(what="control", detail=f"commands that can't be sent: {e!r}"))
        else:
            self._writer.set_result(None)

    def _make_frames(self, *, more: bool) -> list[control_pb2.RuntimeFrame]:
        frames = self._beside.take(self.programs.journals)
        while len(self._starts) > _STARTS_BESIDE_COMMANDS or (
            how_many_fit(self._starts, _BESIDE_COMMANDS_BYTES) < len(self._starts)
        ):
            fit = how_many_fit(self._starts)
            frames.append(control_pb2.RuntimeFrame(starts=self._starts[:fit]))
            self._starts = self._starts[fit:]
        frame = control_pb2.RuntimeFrame()
        if self._starts:
            frame.starts.extend(self._starts)
            self._starts = []
        if self._histories:
            frames += [frame] if frame.ByteSize() else []
            frames += self._histories
            frame, self._histories = control_pb2.RuntimeFrame(), []
        for program in self._unsent.values():
            program.has_engine_state = True
            program.unsent_commands = 0
        for i, columns in enumerate(self._outbox.take()):
            if i:
                frames.append(frame)
                frame = control_pb2.RuntimeFrame()
            commands = frame.commands
            commands.handles, commands.records, commands.payload = columns
        ends, self._ends = self._ends, []
        frame.ends.extend(ends[:_ENDS_A_FRAME])
        for at in range(_ENDS_A_FRAME, len(ends), _ENDS_A_FRAME):
            frames.append(frame)
            frame = control_pb2.RuntimeFrame(ends=ends[at : at + _ENDS_A_FRAME])
        self._unsent = {}
        if self._again:  # behind the end of the run before, which control takes first
            frames.append(frame)
            frame = control_pb2.RuntimeFrame(starts=self._again)
            self._again = []
        if frame.ByteSize() or (self._held and not more):
            frames.append(frame)
        for earlier in frames:
            earlier.more = True
        if frames:
            frames[-1].more = self._held = more
        return frames

    def _in_place_of(self, frame: control_pb2.RuntimeFrame, error: TartletError) -> control_pb2.RuntimeFrame:
        return in_place_of(self.programs.get, frame, error)

    @property
    def _has_words(self) -> bool:
        words = self._starts or self._again or self._ends or self._outbox.commands or self._histories
        return bool(words or self._beside.is_due(self.programs.journals))

    # ---- the stream ----

    async def run(self) -> None:
        """Keep the stream up until cancelled."""
        attempt = 0
        while True:
            deaf = False
            try:
                async with asyncio.TaskGroup() as tasks:
                    stream: Any = self._stub.Connect()
                    try:
                        hello = await self._greet(stream)
                        stream = await self._joiner.join(stream, hello.frames, control_pb2.ControlFrame)
                        attempt = 0
                        await self._serve(stream, hello.applied, tasks)
                    finally:
                        stream.cancel()
            except* (*CALL_ERRORS, TartletError, TimeoutError) as group:
                deaf = group.subgroup(TimeoutError) is not None
                if attempt == 0:
                    log.warning("control: %s", _first(group))
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # the group above forgets it where its writer has failed too
                raise asyncio.CancelledError
            self._disconnected()
            await self._control.renew(deaf=deaf)
            await asyncio.sleep(BACKOFF_S[min(attempt, len(BACKOFF_S) - 1)])
            attempt += 1

    async def _greet(self, call: Any) -> control_pb2.ControlHello:
        """Say Hello, and continue the link with control or begin a new one. Returns control's answer.

        Raises:
            TartletError: control refuses this runtime, or refuses to continue.
        """
        hello = control_pb2.RuntimeHello()
        hello.CopyFrom(self._hello)
        hello.frame_socket = self._joiner.wanted
        self._peer.fill(hello)
        hello.journals = self._beside.named = self.programs.journals
        announced = None
        if not self._peer.resumes:
            self._starts, self._again = [], []  # what waits to start is asked for again
            announced = Announcement(self.programs, hello)
        await call.write(control_pb2.RuntimeFrame(hello=hello))
        async with asyncio.timeout(HELLO_TIMEOUT_S):
            frame = await call.read()
        if not isinstance(frame, control_pb2.ControlFrame):
            raise Unavailable(what="control", detail="it closed the stream")
        resumed = self._peer.answered(frame.hello)
        if not resumed:
            assert announced is not None
            self._begin(announced)
        self.connected = True
        self._away_since = None
        for program in self.programs.live():
            program.control_back(self._clock.now(), resumed=resumed)
        self.on_connected()
        how = f"the link continues behind frame {frame.hello.applied}" if resumed else "a new link begins"
        log.info("connected to control %s: %s", self._peer.incarnation[:8], how)
        self._take(frame)
        return frame.hello

    def _begin(self, announced: Announcement) -> None:
        """Begin a new link: send what Hello had no room for, and what control needs to take programs over."""
        assert self._peer.link is not None
        self._histories = []
        for frame in announced.frames():
            self._peer.link.send(frame)
        for program in announced.remembered():  # their histories have what was not sent, too
            self._forget(program)
            program.has_engine_state, program.unsent_commands = True, 0
        self._ends = announced.ends()
        self._starts = [start for start in self._starts if self.programs.get(start.handle) is not None]

    async def _serve(self, stream: Any, applied: int, tasks: asyncio.TaskGroup) -> None:
        """Read and write, behind the frame that control has applied, until the stream ends."""
        assert self._peer.link is not None
        frames = LinkStream(self._peer.link, stream, self._wake_writer, applied)
        beside = [tasks.create_task(self._write(frames)), tasks.create_task(_watch(frames))]
        try:
            await self._read(frames)
        finally:
            frames.close()
            for task in beside:
                task.cancel()

    async def _read(self, frames: LinkStream) -> None:
        while isinstance(frame := await frames.read(), control_pb2.ControlFrame):  # else: grpc.aio.EOF
            self._take(frame)
            frames.applied()
            self._driver.turn_now()
            if frames.waiting:
                await asyncio.sleep(0)  # they leave before the next is asked for, which takes as long as to write one
        raise Unavailable(what="control", detail="it closed the stream")

    async def _write(self, frames: LinkStream) -> None:
        while True:
            if not frames.waiting:
                self._writer = asyncio.get_running_loop().create_future()
                if self._has_words or self._held:
                    self._driver.schedule()
                await self._writer
            await frames.write_waiting()

    def _wake_writer(self) -> None:
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)

    def _take(self, frame: control_pb2.ControlFrame) -> None:
        try:
            take(self.programs, self._driver, frame)
        except Exception as e:  # a frame that makes no sense costs the link, not the role
            self._peer.drop()
            if isinstance(e, TartletError):
                raise
            log.exception("control sent a frame that can't be used")
            raise Unavailable(what="control", detail=f"a frame that can't be used: {e!r}") from e

    def _disconnected(self) -> None:
        """Note the end of the stream. If the link can't continue, the next one begins with programs' histories."""
        self._peer.disconnected()
        now = self._clock.now()
        if self._away_since is None:
            self._away_since = now
        if self.connected:
            self.connected = False
            self.on_connected()
            for program in self.programs.live():
                program.control_away(now)
        self._writer = None
        if self._peer.resumes and now - self._away_since <= self._peer.grace_s:
            return
        self._peer.drop()
        self._held = False
        self._ends = []  # a new Hello announces only who still runs
        self.on_lost()
        for program in list(self.programs.live()):
            control_lost(program)

    def _forget(self, program: Program) -> None:
        if self._unsent.pop(program.handle, None) is not None:
            self._outbox.forget(program.handle)


async def _watch(frames: LinkStream) -> None:
    """Give signs of life, and end the stream when nothing is heard from control any more.

    Raises:
        TimeoutError: nothing is heard.
    """
    while not frames.silent:
        await asyncio.sleep(BEAT_EVERY_S)
        frames.beat()
    raise TimeoutError("it has been silent for too long")


def _first(group: BaseExceptionGroup[BaseException]) -> str:
    error = group.exceptions[0]
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return detail(error)


def _nothing() -> None:
    """Nobody wants to know."""
