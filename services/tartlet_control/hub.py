"""Joins the core to the loop: when something has happened, pump once, then wake the streams with something to send.

Events of one loop iteration share a pump, so frames that arrive together are scheduled together.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from tartlet_control.core import Core
from tartlet_control.engines import EngineState
from tartlet_control.runtimes import RuntimeSession

log = logging.getLogger("tartlet.control")

TICK_S: Final = 0.25


class RuntimeLink:
    """The stream of a connected runtime."""

    def __init__(self, session: RuntimeSession) -> None:
        self.session = session
        self.wake = asyncio.Event()  # the writer has work
        self.drained = asyncio.Event()  # the outbox was taken
        self.closed = False


class EngineLink:
    """The stream of a connected engine."""

    def __init__(self, engine: EngineState) -> None:
        self.engine = engine
        self.wake = asyncio.Event()
        self.closed = False


class Hub:
    """Owns the core and knows the open streams."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.runtimes: dict[RuntimeSession, RuntimeLink] = {}
        self.engines: dict[EngineState, EngineLink] = {}
        self._loop = asyncio.get_running_loop()
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None

    def changed(self) -> None:
        """Something has happened in the core: pump soon."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._scheduled = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        look_at = self.core.pump()
        if look_at is not None:
            delay_s = max(0.0, look_at - self.core.clock.now())
            self._timer = self._loop.call_later(delay_s, self.changed)
        self.wake()

    def wake(self) -> None:
        """Wake the writers that have something to send."""
        for engine, to_engine in self.engines.items():
            if engine.outgoing or (engine.status == "draining" and not engine.programs):
                to_engine.wake.set()
        for session, to_runtime in self.runtimes.items():
            if session.outbox:
                to_runtime.wake.set()

    async def tick_forever(self) -> None:
        """Housekeeping until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            self.core.tick()
            self.changed()

    # ---- streams ------------------------------------------------------------------------------------------------

    def open_runtime(self, session: RuntimeSession) -> RuntimeLink:
        """The runtime's new stream; an older one of the same session is closed."""
        older = self.runtimes.pop(session, None)
        if older is not None:
            older.closed = True
            older.wake.set()
        link = self.runtimes[session] = RuntimeLink(session)
        self.changed()
        return link

    def close_runtime(self, link: RuntimeLink) -> None:
        """Its stream has ended."""
        link.closed = True
        link.drained.set()
        if self.runtimes.get(link.session) is link:
            del self.runtimes[link.session]
            self.core.on_runtime_gone(link.session)
        self.changed()

    def open_engine(self, engine: EngineState) -> EngineLink:
        """The engine's new stream."""
        link = self.engines[engine] = EngineLink(engine)
        self.changed()
        return link

    def close_engine(self, link: EngineLink) -> None:
        """Its stream has ended."""
        link.closed = True
        link.wake.set()
        if self.engines.pop(link.engine, None) is not None:
            self.core.on_engine_gone(link.engine)
        self.changed()
