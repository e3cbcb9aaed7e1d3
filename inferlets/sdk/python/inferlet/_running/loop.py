"""asyncio's event loop over the host, with one submission and one wait for each point where the program blocks.

`BaseEventLoop` does the work. Where asyncio would poll sockets, this loop submits the recorded commands and suspends
until an answer, a message or the next timer. Tasks, groups, timeouts, queues and locks are those of asyncio.
`native_loop` is the loop of programs outside the sandbox, which have sockets too.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import Context
from types import CodeType
from typing import Any, ClassVar

from inferlet._wire.channel import channel
from inferlet._wire.host import NO_TIMEOUT_US

POLL_EVERY = 128
"""How many turns a busy program runs without blocking before the loop looks for answers."""
THREADS_S = 0.005
"""How long one wait is while a thread works, because a thread can't wake the loop. The sandbox has no threads."""


class _HostSelector:
    """The selector of the loop, which waits for the host and not for sockets."""

    def __init__(self) -> None:
        self._busy = 0
        self.threads = 0  # threads that work for the loop

    def select(self, timeout: float | None) -> tuple[()]:
        """Suspend until the host has something, at most `timeout` seconds (None: no limit)."""
        if self.threads:
            timeout = THREADS_S if timeout is None else min(timeout, THREADS_S)
        if timeout is None:
            self._busy = 0
            channel.wait(NO_TIMEOUT_US)
        elif timeout > 0:
            self._busy = 0
            channel.wait(max(1, round(timeout * 1e6)))
        else:
            self._busy += 1
            if self._busy >= POLL_EVERY:
                self._busy = 0
                channel.wait(0)
        return ()

    def close(self) -> None:
        """No-op: there is nothing to close."""


class ProgramLoop(asyncio.BaseEventLoop):
    """What every event loop of a program does: it runs `main`, keeps results and owns the futures of commands."""

    # asyncio's own, which its types don't show
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _stopping: bool
    _closed: bool
    _debug: bool

    runs = 0
    """How often a loop has run since a program was started."""
    results: ClassVar[dict[CodeType | None, Any]] = {}
    """The results of the coroutines that loops ran, by the code of the coroutine."""

    def call_soon(  # type: ignore[override]  # its types are stricter about what callbacks take
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Call as asyncio does, but without its checks outside of debug mode, because each answer comes this way."""
        if self._debug or self._closed:
            return super().call_soon(callback, *args, context=context)
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def run_main(self, main: Awaitable[Any]) -> Any:
        """Run `main` to its end, then cancel its remaining tasks and close open generators."""

        async def program() -> Any:
            return await main

        try:
            return self.run_until_complete(main if asyncio.iscoroutine(main) else program())
        finally:
            self._cancel_tasks()

    def run_until_complete(self, future: Any) -> Any:
        """Run as asyncio does, and keep the result of the coroutine."""
        result = super().run_until_complete(future)
        coroutine = future.get_coro() if isinstance(future, asyncio.Task) else future
        if inspect.iscoroutine(coroutine):
            ProgramLoop.results[coroutine.cr_code] = result
        return result

    def _cancel_tasks(self) -> None:
        if channel.killed is not None:
            return
        tasks = asyncio.all_tasks(self)
        for task in tasks:
            task.cancel()
        if tasks:
            self.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        if len(self._asyncgens):  # type: ignore[attr-defined]  # most programs leave none
            self.run_until_complete(self.shutdown_asyncgens())

    def finish(self) -> None:
        """Close the loop after the program."""
        channel.loop = None
        self.close()

    def run_forever(self) -> None:
        """Run until stopped. Futures of commands belong to this loop meanwhile."""
        ProgramLoop.runs += 1
        before, channel.loop = channel.loop, self
        try:
            super().run_forever()
        finally:
            channel.loop = before

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Report only exceptions, which would be lost otherwise; asyncio's other reports don't reach the user."""
        if context.get("exception") is not None:
            super().default_exception_handler(context)


class Loop(ProgramLoop):
    """An event loop that waits for the host alone."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _HostSelector()

    def _run_once(self) -> None:
        """Run one round. Without timers it needs no heap, and no time of day, which only the host can tell."""
        if self._scheduled or self._debug:
            super()._run_once()  # type: ignore[misc]  # typeshed hides it too
            return
        ready = self._ready
        self._selector.select(0 if ready or self._stopping else None)
        for _ in range(len(ready)):  # those that become ready meanwhile have their turn in the next
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()  # noqa: SLF001 - as asyncio's own loop does

    def run_in_executor(self, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Run as asyncio does; the loop looks often whether the thread has finished."""
        future = super().run_in_executor(*args)
        self._selector.threads += 1
        future.add_done_callback(self._thread_done)
        return future

    def _thread_done(self, _: object) -> None:
        self._selector.threads -= 1

    async def shutdown_default_executor(self, *args: Any) -> None:
        """Shut down as asyncio does, which uses one more thread."""
        self._selector.threads += 1
        try:
            await super().shutdown_default_executor(*args)
        finally:
            self._thread_done(None)

    def _process_events(self, events: object) -> None:
        """No-op: the selector has resolved all futures."""

    def _write_to_self(self) -> None:
        """No-op: no other thread needs to wake this loop."""
