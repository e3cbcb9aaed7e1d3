"""Joins the core to the event loop: after each event, pump the core, then wake the streams that have something to send.

The task that read a frame writes the answers on its own stream itself, which saves a turn of the loop. The writers of
the other streams are woken. `Link` makes sure that a stream has one writer at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

from tartlet_common.errors.registry import MalformedSubmission
from tartlet_common.rpc.frame_streams import Stream
from tartlet_common.rpc.link_stream import LinkStream
from tartlet_common.rpc.resume import LIMIT_BYTES, Epochs
from tartlet_control.core.core import Core
from tartlet_control.sharing.adopting import label
from tartlet_control.tables.engines import EngineState
from tartlet_control.tables.outbox import HARD_LIMIT_BYTES
from tartlet_control.tables.programs import RuntimeSession

log = logging.getLogger("tartlet.control")

TICK_S: Final = 0.25


_FRAME_COST_BYTES: Final = 64
SOFT_LIMIT_BYTES: Final = 8 << 20
"""While a runtime leaves more unread, control takes up no frames of the runtime and dispatches nothing for it."""


class Link:
    """An open stream. `write_all` writes what waits for the stream until nothing does."""

    def __init__(self, peer: RuntimeSession | EngineState) -> None:
        """Begin the next connection of the link with a runtime or an engine."""
        assert peer.link is not None
        peer.link.disconnect()  # an earlier connection, if there is one
        peer.gone_since = None
        self.link = peer.link
        self.stream: LinkStream | None = None  # after Hello
        self.wake = asyncio.Event()  # the writer has work
        self.closed = False
        self._writing = False

    def begin(self, stream: Stream, applied: int) -> LinkStream:
        """Let frames travel on a stream, behind the last number that the peer has applied."""
        self.stream = LinkStream(self.link, stream, self.wake.set, applied)
        self.wake.set()
        return self.stream

    def tend(self) -> None:
        """Cut a stream on which nothing is heard any more, and give a sign of life on others."""
        if self.stream is None:
            return
        if self.stream.silent:
            log.warning("a connection has been silent for too long and counts as broken")
            self.cut()
        else:
            self.stream.beat()

    def cut(self) -> None:
        """End the stream from our side."""
        self.closed = True
        self.wake.set()

    def end(self) -> None:
        """Note that the stream has ended."""
        self.closed = True
        if self.stream is not None:
            self.stream.close()
            if self.stream.current:
                self.link.disconnect()

    async def flush(self, write_all: Callable[[], Awaitable[None]]) -> None:
        """Write what waits. If another task is writing already, that task writes this too."""
        if self._writing:
            return
        self._writing = True
        try:
            await write_all()
        finally:
            self._writing = False

    async def flush_forever(self, write_all: Callable[[], Awaitable[None]]) -> None:
        """Flush whenever woken, until closed."""
        while not self.closed:
            await self.wake.wait()
            self.wake.clear()
            await self.flush(write_all)


class RuntimeLink(Link):
    """The stream of a connected runtime."""

    def __init__(self, session: RuntimeSession) -> None:
        super().__init__(session)
        self.session = session
        self.drained = asyncio.Event()  # the outbox was taken
        self.unapplied: deque[Any] = (
            deque()
        )  # frames that were read and wait until the outbox has room and histories before them are folded
        self._unapplied_bytes = 0
        self.folding = asyncio.Event()  # a program's history has come
        self.task = asyncio.current_task()  # serves the stream; cancelling it ends it

    def writer_ended(self, writer: asyncio.Future[None]) -> None:
        """End the stream if its writer has failed, because the runtime would wait for ever."""
        if not writer.cancelled():
            self.cut()

    def check_bound(self, frame: Any) -> None:
        """Count a frame that was read and has to wait.

        Raises:
            MalformedSubmission: the runtime sends more than it may leave unacknowledged.
        """
        if len(self.unapplied) == 1:
            self._unapplied_bytes = 0
        self._unapplied_bytes += frame.ByteSize() + _FRAME_COST_BYTES
        if self._unapplied_bytes > 2 * LIMIT_BYTES:
            detail = f"{self._unapplied_bytes} bytes of frames without an acknowledgement"
            raise MalformedSubmission(detail=detail)

    @property
    def has_room(self) -> bool:
        """Whether the runtime reads fast enough to be given more."""
        return self.session.outbox.size <= SOFT_LIMIT_BYTES

    @property
    def takes_more(self) -> bool:
        """Whether a frame that was read may take effect."""
        return not self.closed and (self.has_room or not self.link.resumes)

    def cut(self) -> None:
        """End the stream from our side."""
        self.closed = True
        if self.task is not None:
            self.task.cancel()


class EngineLink(Link):
    """The stream of a connected engine."""

    def __init__(self, engine: EngineState, core: Core) -> None:
        super().__init__(engine)
        self.engine = engine
        self._core = core

    @property
    def has_work(self) -> bool:
        """Whether there is something to tell the engine."""
        engine = self.engine
        waits = bool(engine.outgoing or engine.grammars.outgoing or engine.unload) or engine.labels.wait
        return waits or self.lets_go or (self.stream is not None and self.stream.waiting)

    @property
    def lets_go(self) -> bool:
        """Whether the engine is to be told that it may go."""
        engine = self.engine
        return engine.status == "draining" and not engine.let_go and self._core.unused(engine)


class CoreLoop:
    """Owns the core, pumps it, and knows the open streams."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.runtimes: dict[RuntimeSession, RuntimeLink] = {}
        self.engines: dict[EngineState, EngineLink] = {}
        self._loop = asyncio.get_running_loop()
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self.epochs = Epochs()  # of runtimes
        self.engine_epochs = Epochs()  # apart, so that no engine can take a runtime's id
        """What was seen of runtimes and workers, by id."""
        self.leads: Callable[[], bool] = lambda: True
        """Whether this control holds its lease. Without it, nothing is dispatched."""
        self._watches: set[asyncio.Event] = set()
        self._watched_version = core.engines_version

    def changed(self) -> None:
        """Pump soon, because something has happened in the core."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._pump_scheduled)

    def _pump_scheduled(self) -> None:
        self._scheduled = False
        self.pump()

    def pump(self, own: Link | None = None) -> None:
        """Form the steps that are due, and wake the writers of all streams with work except `own`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.leads():
            return
        self._hold()
        look_at = self.core.pump()
        if look_at is not None:
            delay_s = max(0.0, look_at - self.core.clock.now())
            self._timer = self._loop.call_later(delay_s, self.changed)
        for to_engine in self.engines.values():
            if to_engine is not own and to_engine.has_work:
                to_engine.wake.set()
        for session, to_runtime in self.runtimes.items():
            if to_runtime is not own and session.outbox:
                to_runtime.wake.set()
        if self.core.engines_version != self._watched_version:
            self._watched_version = self.core.engines_version
            for watch in self._watches:
                watch.set()

    def _hold(self) -> None:
        """Dispatch nothing for runtimes that have much unread, and something for those that have read on."""
        for session in self.core.sessions.values():
            link = session.link
            held = session.outbox.size > SOFT_LIMIT_BYTES or (link is not None and link.full)
            if held != session.held:
                self.core.hold(session, held=held)

    async def tick_forever(self) -> None:
        """Run the core's housekeeping until cancelled."""
        while True:
            began_s = self.core.clock.now()
            await asyncio.sleep(TICK_S)
            late_s = self.core.clock.now() - began_s - TICK_S
            if late_s > TICK_S:  # this process stood still: peers that come back were not heard meanwhile
                self.core.pardon(late_s)
            self.core.tick()
            self._label_rows()
            for link in (*self.runtimes.values(), *self.engines.values()):
                link.tend()
            self._cut_overfull()
            self.changed()

    def _label_rows(self) -> None:
        """Tell workers what their pages hold, for the control after this one."""
        core = self.core
        for engine in core.engines.values():
            places = [program.places[engine.model_index] for program in core.lifecycle.placed_on(engine)]
            label(engine, places, core.clock.now())

    def _cut_overfull(self) -> None:
        """Cut off runtimes that don't read. The limits of their programs should have stopped them long before."""
        for session, link in list(self.runtimes.items()):
            if session.outbox.size > HARD_LIMIT_BYTES:
                log.error("runtime %s leaves %d bytes unread", session.runtime_id, session.outbox.size)
                link.link.give_up()
                link.cut()

    @contextlib.contextmanager
    def watching_engines(self) -> Iterator[asyncio.Event]:
        """Yield an event that is set whenever an engine has come, gone or changed its state."""
        watch = asyncio.Event()
        self._watches.add(watch)
        try:
            yield watch
        finally:
            self._watches.remove(watch)

    # ---- streams ------------------------------------------------------------------------------------------------

    def open_runtime(self, session: RuntimeSession, epoch: int) -> RuntimeLink:
        """Return the link of a runtime's new stream. Older streams of the same runtime are closed.

        `epoch` is that of the Hello, which was checked.
        """
        for older in [s for s in self.runtimes if s.runtime_id == session.runtime_id]:
            self.runtimes.pop(older).cut()  # also of an earlier incarnation, whose session has no stream any more
        link = self.runtimes[session] = RuntimeLink(session)
        self.epochs.joined(session.runtime_id, epoch, self.core.clock.now())
        self.changed()
        return link

    def close_runtime(self, link: RuntimeLink) -> None:
        """Note that a runtime's stream has ended."""
        link.end()
        link.drained.set()
        if self.runtimes.get(link.session) is link:
            del self.runtimes[link.session]
            self.epochs.left(link.session.runtime_id, self.core.clock.now())
            self.core.on_runtime_gone(link.session)
        self.changed()

    def open_engine(self, engine: EngineState, epoch: int) -> EngineLink:
        """Return the link of an engine's new stream. Close an older stream of the same id.

        `epoch` is that of the Hello, which was checked.
        """
        for older in [e for e in self.engines if e.id == engine.id]:
            self.engines.pop(older).cut()
        link = self.engines[engine] = EngineLink(engine, self.core)
        self.engine_epochs.joined(engine.id, epoch, self.core.clock.now())
        self.changed()
        return link

    def close_engine(self, link: EngineLink) -> None:
        """Note that an engine's stream has ended. The engine may come back, unless it was told to go."""
        engine = link.engine
        link.cut()
        link.end()
        if self.engines.get(engine) is link:
            del self.engines[engine]
            self.engine_epochs.left(engine.id, self.core.clock.now())
            told = engine.let_go and link.link.acknowledged == link.link.last
            if told or link.link.lost or not link.link.resumes:
                self.core.on_engine_gone(engine)
            else:
                self.core.on_engine_away(engine)
        self.changed()
