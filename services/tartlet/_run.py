"""`Run`: the events of a program that is followed."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Self

import grpc.aio

from tartlet import _convert
from tartlet._calls import from_rpc
from tartlet.events import Accepted, Ended, Event
from tartlet_common.errors.registry import Disconnected, InvalidArgument, RuntimeLost, TartletError, Unavailable
from tartlet_protos import programs_pb2

_ProgramEvents = programs_pb2.ProgramEvents


class Run:
    """A program that is followed: iterate its events, or wait for its end.

    Made by `AsyncClient.run` and `AsyncClient.attach`. A loop that was left goes on where it stopped, in the next loop,
    in `anext` or in `wait`; one that is cancelled, by `asyncio.wait_for` say, loses nothing, and the program goes on.

    Attributes:
        program_id: the program's id.
        ended: its end, once that has been seen.
    """

    def __init__(
        self, program_id: str, guest_token: str, stream: Any, address: str, first: _ProgramEvents | None = None
    ) -> None:
        """`first`: what has been read of the stream already."""
        self.program_id = program_id
        self.guest_token = guest_token  # admits the process of a native program
        self.ended: Ended | None = None
        self._stream = stream
        self._address = address
        self._messages = deque(first.events if first is not None else ())
        self._frame: asyncio.Task[Any] | None = None  # the next one, while it is being read
        self._lost: TartletError | None = None
        self._is_read = False

    def __aiter__(self) -> Self:
        """Events as they come; `Ended` is the last."""
        return self

    async def __anext__(self) -> Event:
        """The next event.

        Raises:
            RuntimeLost: the runtime went away with the program.
            Disconnected: it isn't followed any more: `cancel` was called, or the client was closed.
            InvalidArgument: another task waits for the next event.
        """
        if self._is_read:
            raise InvalidArgument(argument="run", detail="another task waits for its next event")
        self._is_read = True
        try:
            while self.ended is None:
                while not self._messages:
                    self._messages.extend((await self._next_frame()).events)
                event = _convert.event_from_proto(self._messages.popleft())
                if isinstance(event, Ended):
                    self.ended = event
                if not isinstance(event, Accepted):
                    return event
        finally:
            self._is_read = False
        raise StopAsyncIteration

    async def wait(self) -> Ended:
        """Read and drop the other events until the program has ended.

        Raises:
            RuntimeLost, Disconnected, InvalidArgument: as with the next event.
        """
        while self.ended is None:
            await anext(self, None)
        return self.ended

    def cancel(self) -> None:
        """Stop following. A program of `AsyncClient.run` ends with it; one that was launched goes on."""
        self._stream.cancel()

    def __del__(self) -> None:
        """A call that nobody has any more ends; one that is being read would not."""
        if self._frame is not None and not (loop := self._frame.get_loop()).is_closed():
            loop.call_soon_threadsafe(self._stream.cancel)

    async def _next_frame(self) -> _ProgramEvents:
        """Whoever waits for it may be cancelled; the call must not be, and the frame waits for the next one."""
        if self._lost is not None:
            raise self._lost
        if self._frame is None:
            self._frame = asyncio.ensure_future(self._stream.read())
            self._frame.add_done_callback(_noted)
        await asyncio.wait((self._frame,))
        read, self._frame = self._frame, None
        if read.cancelled():
            self._lost = Disconnected(remedy="Attach to the program, if it was launched to outlive its client.")
        elif isinstance(broken := read.exception(), grpc.aio.AioRpcError):
            error = from_rpc(broken, self._address)
            self._lost = RuntimeLost() if isinstance(error, Unavailable) else error
        elif read.result() is grpc.aio.EOF:
            self._lost = RuntimeLost()  # the stream ended before the program did
        else:
            frame: _ProgramEvents = read.result()
            return frame
        raise self._lost


def _noted(read: asyncio.Task[Any]) -> None:
    """Nobody may ask for it any more, which is nothing to complain of."""
    if not read.cancelled():
        read.exception()
