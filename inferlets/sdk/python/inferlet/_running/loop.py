"""asyncio's event loop over the host: one submission and one wait per blocking point.

`BaseEventLoop` does all the work; where it would poll sockets, this one hands the recorded commands to the host and
suspends until an answer, a message or the next timer. Tasks, groups, timeouts, queues and locks are asyncio's own.
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
"""Turns without blocking after which a busy program looks for answers all the same."""
THREADS_S = 0.005
"""How long the loop waits at once for a thread, which can't wake it; there are some outside the sandbox alone."""


class _HostSelector:
    """What `BaseEventLoop` takes for its selector."""

    def __init__(self) -> None:
        self._busy = 0
        self.threads = 0  # that do something for the loop

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
        """Nothing to close."""


class Loop(asyncio.BaseEventLoop):
    """An event loop whose outside world is the host."""

    # asyncio's own, which its types don't show
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _stopping: bool
    _closed: bool
    _debug: bool

    runs = 0
    """How often a loop has run since a program was started."""
    results: ClassVar[dict[CodeType | None, Any]] = {}
    """And what the coroutines returned that it ran for, by their code."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _HostSelector()

    def call_soon(  # type: ignore[override]  # its types are stricter about what callbacks take
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """As asyncio's, without its checks outside of debug mode: it is called for each answer."""
        if self._debug or self._closed:
            return super().call_soon(callback, *args, context=context)
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def _run_once(self) -> None:
        """One round. Without timers it needs neither a heap nor the time of day, which the host would be asked for."""
        if self._scheduled or self._debug:
            super()._run_once()  # type: ignore[misc]  # typeshed hides it too
            return
        ready = self._ready
        self._selector.select(0 if ready or self._stopping else None)
        for _ in range(len(ready)):  # those that become ready meanwhile have their turn in the next
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()  # noqa: SLF001 - as asyncio's own loop does

    def run_main(self, main: Awaitable[Any]) -> Any:
        """Run `main` to its end, then cancel the tasks that it has left and close what is open."""

        async def program() -> Any:
            return await main

        try:
            return self.run_until_complete(main if asyncio.iscoroutine(main) else program())
        finally:
            self._cancel_tasks()

    def run_until_complete(self, future: Any) -> Any:
        """As asyncio's; what the coroutine returned stays known."""
        result = super().run_until_complete(future)
        coroutine = future.get_coro() if isinstance(future, asyncio.Task) else future
        if inspect.iscoroutine(coroutine):
            Loop.results[coroutine.cr_code] = result
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
        """Close the loop; nothing runs any more."""
        channel.loop = None
        self.close()

    def run_forever(self) -> None:
        """Run until stopped; commands' futures belong to this loop meanwhile."""
        Loop.runs += 1
        before, channel.loop = channel.loop, self
        try:
            super().run_forever()
        finally:
            channel.loop = before

    def run_in_executor(self, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """As asyncio's; the loop looks often whether it is done."""
        future = super().run_in_executor(*args)
        self._selector.threads += 1
        future.add_done_callback(self._thread_done)
        return future

    def _thread_done(self, _: object) -> None:
        self._selector.threads -= 1

    async def shutdown_default_executor(self, *args: Any) -> None:
        """As asyncio's, which has a thread wait for the others."""
        self._selector.threads += 1
        try:
            await super().shutdown_default_executor(*args)
        finally:
            self._thread_done(None)

    def _process_events(self, events: object) -> None:
        """The selector has resolved everything itself."""

    def _write_to_self(self) -> None:
        """Nobody else runs here who could need to wake this loop."""

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep asyncio's report off the user's output unless an exception would be lost with it."""
        if context.get("exception") is not None:
            super().default_exception_handler(context)
