"""The event loop of native programs: asyncio's own, with sockets, processes and threads, which also hears the host.

Where asyncio polls its sockets, this loop submits the recorded commands and polls the runtime's socket with the others.
A program without sockets and threads waits exactly as in the sandbox, so its journal replays. What comes over a
program's own sockets is in no journal.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
import weakref
from collections.abc import Mapping
from concurrent.futures import thread as executors
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from inferlet._running.loop import POLL_EVERY, ProgramLoop
from inferlet._wire import host
from inferlet._wire.channel import WAIT_RECORDS, channel

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from _typeshed import FileDescriptorLike

_OWN = 2  # files of each loop: the runtime's socket, and the one that wakes the loop


class WatchedItem(executors._WorkItem):  # type: ignore[type-arg]  # noqa: SLF001 - nothing else tells when work ends
    """A function that waits for a thread of an executor, or runs there. It is gone when its future's callbacks ran."""

    alive: ClassVar[weakref.WeakSet[WatchedItem]] = weakref.WeakSet()

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.alive.add(self)


class PolledBackend(host.Backend, Protocol):
    """A host that is a socket: a wait is begun, and its delivery taken when the socket is readable."""

    waits: bool
    """Whether a wait was begun whose delivery has not been taken."""

    def fileno(self) -> int:
        """Return the socket's file descriptor."""

    def begin_wait(self, max_records: int, timeout_us: int) -> None:
        """Ask for a delivery."""

    def take(self) -> bytes:
        """Return the delivery of the wait that was begun; block until it is there."""


class HostSelector(selectors.BaseSelector):
    """A selector that polls the runtime's socket beside the program's."""

    def __init__(self, backend: PolledBackend) -> None:
        self._backend = backend
        self._inner = selectors.DefaultSelector()
        self._inner.register(backend, selectors.EVENT_READ)
        self._busy = 0
        self.threads = 0  # of executors, that work for the loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for the host, the program's sockets and its threads, at most `timeout` seconds (None: no limit)."""
        if timeout is not None and timeout <= 0:
            self._busy += 1
            if self._busy >= POLL_EVERY:
                self._busy = 0
                channel.wait(0)
            return self._poll(0)
        self._busy = 0
        channel.flush()
        waits_before = self._backend.waits
        alone = not waits_before and self._is_alone()
        if alone and timeout is None and not channel.expects:
            if events := self._poll(0):  # a thread that has ended woke the loop before
                return events
            channel.check_expected()
        if alone or (channel.expects and not waits_before):
            self._backend.begin_wait(WAIT_RECORDS, _microseconds(timeout) if alone else host.NO_TIMEOUT_US)
        return self._poll(None if alone else timeout)

    def _is_alone(self) -> bool:
        """Return whether nothing but the host can end a wait."""
        if len(self._inner.get_map()) > _OWN or self.threads or WatchedItem.alive:
            return False
        if threading.active_count() == 1:
            return True
        idle = executors._threads_queues  # noqa: SLF001 - nothing else tells executors' threads apart
        return all(each is threading.main_thread() or each in idle for each in threading.enumerate())

    def _poll(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        events = self._inner.select(timeout)
        own = [event for event in events if event[0].fileobj is not self._backend]
        if len(own) < len(events):
            channel.take(self._backend.take())
        return own

    def register(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> selectors.SelectorKey:
        """Watch a file."""
        return self._inner.register(fileobj, events, data)

    def unregister(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        """Watch a file no longer."""
        return self._inner.unregister(fileobj)

    def modify(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> selectors.SelectorKey:
        """Change what a file is watched for."""
        return self._inner.modify(fileobj, events, data)

    def get_map(self) -> Mapping[FileDescriptorLike, selectors.SelectorKey]:
        """Return the watched files."""
        return self._inner.get_map()

    def close(self) -> None:
        """Close the selector; the runtime's socket stays open."""
        self._inner.close()


class NativeLoop(ProgramLoop, asyncio.SelectorEventLoop):
    """asyncio's event loop of this system, which also hears the host."""

    def __init__(self) -> None:
        backend: Any = host.backend
        executors._WorkItem = WatchedItem  # type: ignore[assignment, misc]  # noqa: SLF001 - for all executors
        self._host_selector = HostSelector(backend)
        super().__init__(self._host_selector)

    def run_in_executor(  # type: ignore[override]  # a coroutine function in typeshed, a function in asyncio
        self, executor: Executor | None, func: Any, *args: Any
    ) -> asyncio.Future[Any]:
        """Run as asyncio does; the loop knows that a thread will wake it."""
        future: asyncio.Future[Any] = super().run_in_executor(executor, func, *args)
        self._host_selector.threads += 1
        future.add_done_callback(self._thread_done)
        return future

    def _thread_done(self, _: object) -> None:
        self._host_selector.threads -= 1


def _microseconds(timeout: float | None) -> int:
    return host.NO_TIMEOUT_US if timeout is None else max(1, round(timeout * 1e6))
