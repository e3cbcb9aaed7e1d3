"""The stream of a program's events, which attaches again behind the last event when its connection breaks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import grpc.aio

from tartlet._calls import FIRST_PAUSE_S, LAST_PAUSE_S, from_rpc, may_come_back
from tartlet_common.errors.registry import (
    Disconnected,
    RuntimeLost,
    Superseded,
    TartletError,
    Unavailable,
    UnknownProgram,
)
from tartlet_common.rpc.error_proto import error_from_proto
from tartlet_protos import programs_pb2

log = logging.getLogger("tartlet")

_Event = programs_pb2.ProgramEvent
_ANSWERS = (_Event.ACCEPTED, _Event.REJECTED)


class Following:
    """Reads one program's frames of events.

    A broken stream is replaced by one that begins behind the last event that was read. So is a stream on which the
    server says that the program's runtime can't be reached.
    """

    def __init__(
        self,
        stream: Any,
        address: str,
        *,
        offset: int = 0,
        attach: Callable[[int], Any] | None = None,
        retry_s: float = 0.0,
        first: Sequence[Any] = (),
        gone: Callable[[bool], None] | None = None,
    ) -> None:
        """Read `stream`.

        Args:
            stream: a call of Launch or Attach.
            address: the server's, for errors.
            offset: of the first event.
            attach: makes a stream from an offset on; None: the program ends with its stream.
            retry_s: for how long a broken stream is replaced, in seconds.
            first: events that were read from the stream already.
            gone: called once, with True when the program has ended, or with False when following was cancelled.
        """
        self._address = address
        self._next = offset
        self._attach = attach
        self._retry_s = retry_s
        self._gone = gone
        self._is_cancelled = self._is_over = self._is_read = False
        self._coming_back: asyncio.Task[None] | None = None
        self._refusal: Unavailable | None = None  # of the last stream
        self._was_heard = False
        self._follow(stream)
        self._was_heard = bool(first and self._news(first))

    def cancel(self) -> None:
        """Stop following."""
        self._is_cancelled = True
        self._tell(has_ended=False)
        self._stream.cancel()

    def _tell(self, *, has_ended: bool) -> None:
        gone, self._gone = self._gone, None
        if gone is not None:
            gone(has_ended)

    def _follow(self, stream: Any) -> None:
        self._stream = stream
        if self._attach is not None and self._gone is not None:
            stream.add_done_callback(self._stream_ended)

    def _stream_ended(self, stream: Any) -> None:
        """Attach again although nobody reads: the program waits for its client."""
        if self._is_missed(stream) and self._coming_back is None:
            self._coming_back = asyncio.ensure_future(self._come_back(stream))
            self._coming_back.add_done_callback(self._is_back)

    def _is_missed(self, stream: Any) -> bool:
        return stream is self._stream and not (self._is_read or self._is_over or self._is_cancelled)

    async def _come_back(self, stream: Any) -> None:
        clock = asyncio.get_running_loop().time
        end_s, pause_s = clock() + self._retry_s, FIRST_PAUSE_S
        while clock() < end_s and self._attach is not None and await stream.code() is not grpc.StatusCode.OK:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_PAUSE_S)
            if not self._is_missed(stream):
                return
            stream = self._stream = self._attach(self._next)
            with contextlib.suppress(grpc.aio.AioRpcError):
                await stream.initial_metadata()
                if not stream.done():
                    stream.add_done_callback(self._stream_ended)
                    return

    def _is_back(self, coming: asyncio.Task[None]) -> None:
        self._coming_back = None
        if not coming.cancelled() and coming.exception() is not None:
            log.info("a program's client could not come back: %s", coming.exception())

    async def read(self) -> Sequence[Any]:
        """Return the next events, each offset once.

        Raises:
            RuntimeLost: the runtime is gone, or doesn't know the program any more.
            Unavailable: no server answered, or none could say yet who has the program.
            Disconnected: the server ended the call.
            TartletError: the server refused to go on.
            asyncio.CancelledError: `cancel` was called, or the client was closed.
        """
        self._is_read = True
        try:
            return await self._read()
        finally:
            self._is_read = False

    async def _read(self) -> Sequence[Any]:
        clock = asyncio.get_running_loop().time
        end_s: float | None = None
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                frame = await self._stream.read()
            except grpc.aio.AioRpcError as e:
                error = from_rpc(e, self._address)
                if not isinstance(error, (Unavailable, Disconnected)):
                    raise error from None
                lost: TartletError = error if isinstance(error, Disconnected) else RuntimeLost()
                if isinstance(error, Unavailable) and not self._was_heard:
                    lost = error
                    if not may_come_back(self._address):
                        raise lost from None
            else:
                lost = RuntimeLost()
                if frame is not grpc.aio.EOF and (events := self._news(frame.events)) is not None:
                    self._was_heard = True
                    return events
            refusal, self._refusal = self._refusal, None
            if end_s is None:
                end_s = clock() + self._retry_s
            if self._attach is None or clock() + pause_s > end_s:
                raise lost if self._was_heard or refusal is None else refusal
            log.info("the stream from %s ended; going on at event %d in %g s", self._address, self._next, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_PAUSE_S)
            if self._is_cancelled:
                raise asyncio.CancelledError
            self._follow(self._attach(self._next))

    def _news(self, events: Sequence[Any]) -> Sequence[Any] | None:
        """Return the events that were not read before; None: the server can't say yet who has the program.

        Raises:
            RuntimeLost: the program was followed before, and nobody knows it now.
        """
        if any(event.kind == _Event.ENDED and event.error.number == Superseded.number for event in events):
            return None  # another runtime goes on with the program
        for event in events:
            if event.kind == _Event.REJECTED:
                error = error_from_proto(event.error)
                if isinstance(error, Unavailable) and self._attach is not None:
                    self._refusal = error
                    return None
                if self._was_heard:
                    raise RuntimeLost if isinstance(error, UnknownProgram) or error is None else error
        news = [event for event in events if event.kind in _ANSWERS or event.offset >= self._next]
        for event in news:
            if event.kind not in _ANSWERS:
                self._next = event.offset + 1
            if event.kind == _Event.ENDED:
                self._is_over = True
                self._tell(has_ended=True)
        return news
