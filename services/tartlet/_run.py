"""`Run`: a program whose events the client follows."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, Self

import grpc.aio

from tartlet import _convert
from tartlet._calls import translated
from tartlet._following import Following
from tartlet._ties import Ties
from tartlet.events import Accepted, Ended, Event
from tartlet_common.errors.registry import Disconnected, InternalError, InvalidArgument, TartletError


class Followed(Protocol):
    """Reads one program's events, whatever they come by."""

    def cancel(self) -> None:
        """Stop following."""

    async def read(self) -> Sequence[Any]:
        """Return the next events, each offset once."""
        ...


class Run:
    """A program that the client follows: iterate over its events, or wait for its end.

    `AsyncClient.run` and `AsyncClient.attach` make runs. After leaving a loop over the events, the next loop, `anext`
    or `wait` continues with the next event. Cancelling a loop, for example by `asyncio.wait_for`, loses no event and
    does not end the program.

    A run outlives its connection: it attaches again behind the last event, for `retry_s` of its client. The program of
    `AsyncClient.run` waits for that as long as its runtime's `client_grace_s` allows.

    Attributes:
        program_id: the program's id.
        ended: the program's end, once it was received.
    """

    def __init__(self, program_id: str, guest_token: str, following: Followed, first: Sequence[Any] = ()) -> None:
        """Read from `following`; `first` holds events that were already read."""
        self.program_id = program_id
        self.guest_token = guest_token  # admits the process of a native program
        self.ended: Ended | None = None
        self._following = following
        self._messages = deque(first)
        self._frame: asyncio.Task[Any] | None = None  # the frame that is being read
        self._lost: TartletError | None = None
        self._is_read = False
        self._loop = asyncio.get_running_loop()

    def __aiter__(self) -> Self:
        """Iterate over the events as they arrive; `Ended` is the last."""
        return self

    async def __anext__(self) -> Event:
        """Return the next event.

        Raises:
            RuntimeLost: the runtime went away with the program.
            Disconnected: the client stopped following: `cancel` was called, or the client was closed.
            InvalidArgument: another task already waits for the next event.
        """
        with self._reading():
            while self.ended is None:
                while not self._messages:
                    self._messages.extend(await self._next_events())
                event = _convert.event_from_proto(self._messages.popleft())
                if isinstance(event, Ended):
                    self.ended = event
                if not isinstance(event, Accepted):
                    return event
        raise StopAsyncIteration

    async def found(self) -> None:
        """Wait until the server has found the program, or, over HTTP, until the program's next event has come.

        Raises:
            UnknownProgram: no program has this id.
            RuntimeLost, Disconnected, InvalidArgument: as for the next event.
        """
        with self._reading():
            while self.ended is None and not self._messages:
                self._messages.extend(await self._next_events())
        if self._messages:
            _convert.event_from_proto(self._messages[0])  # raises the error of a refusal

    async def wait(self) -> Ended:
        """Wait for the program's end; the other events are read and dropped.

        Raises:
            RuntimeLost, Disconnected, InvalidArgument: as for the next event.
        """
        while self.ended is None:
            await anext(self, None)
        return self.ended

    def cancel(self) -> None:
        """Stop following. A program started by `AsyncClient.run` ends then; a launched program goes on."""
        self._following.cancel()

    def __del__(self) -> None:
        """End the call of a run that was dropped, and a program that ends with it."""
        if self.ended is None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._following.cancel)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        if self._is_read:
            raise InvalidArgument(argument="run", detail="another task waits for its next event")
        self._is_read = True
        try:
            yield
        finally:
            self._is_read = False

    async def _next_events(self) -> Sequence[Any]:
        """Read the next events. If the waiting task is cancelled, the read goes on and its events are kept."""
        if self._lost is not None:
            raise self._lost
        if self._frame is None:
            self._frame = asyncio.ensure_future(self._following.read())
            self._frame.add_done_callback(_noted)
        await asyncio.wait((self._frame,))
        read, self._frame = self._frame, None
        if read.cancelled():
            self._lost = Disconnected(remedy="Attach to the program, if it was launched to outlive its client.")
        elif isinstance(broken := read.exception(), TartletError):
            self._lost = broken
        else:
            events: Sequence[Any] = read.result()
            return events
        raise self._lost


def _noted(read: asyncio.Task[Any]) -> None:
    """Retrieve the error of a read whose result is not needed any more, so that asyncio doesn't log it."""
    if not read.cancelled():
        read.exception()


async def launched(
    stream: Any, address: str, attach: Callable[[str, int], Any], retry_s: float, ties: Ties, key: bytes
) -> Run:
    """Read a Launch stream up to its answer and return the run, which `attach` takes up again if the stream breaks.

    Args:
        stream: the call.
        address: the server's, for errors.
        attach: makes a stream of a program from an offset on.
        retry_s: for how long a broken stream is replaced, in seconds.
        ties: tells the server when the client leaves the program.
        key: names the client to the program; b"": the program doesn't wait for the client.

    Raises:
        TartletError: the server at `address` rejected the launch, or didn't answer.
    """
    try:
        with translated(address):
            frame = await stream.read()
            while frame is not grpc.aio.EOF and not frame.events:
                frame = await stream.read()
    except BaseException:  # if cancelled while the answer arrives, the program would run unknown to the caller
        stream.cancel()
        raise
    if frame is grpc.aio.EOF:
        raise InternalError(detail="a launch was not answered")
    first = _convert.event_from_proto(frame.events[0])
    if not isinstance(first, Accepted):
        raise InternalError(detail=f"a launch was answered with {first}")
    again = partial(attach, first.program_id)

    def gone(has_ended: bool) -> None:  # noqa: FBT001 - a callback's only argument
        if has_ended:
            ties.ended(key)
        else:
            ties.leave([key])

    if key:
        ties.add(key, first.program_id)
    following = Following(stream, address, attach=again, retry_s=retry_s, first=frame.events, gone=gone)
    return Run(first.program_id, first.guest_token, following, frame.events[1:])
