"""`Run`: the events of a program that is followed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from tartlet import _convert
from tartlet._calls import from_rpc
from tartlet.events import Accepted, Ended, Event
from tartlet_common.errors import InternalError, RuntimeLost, Unavailable
from tartlet_protos import programs_pb2


class Run:
    """A program that is followed: iterate its events, or wait for its end.

    Made by `AsyncClient.run` and `AsyncClient.attach`.
    """

    def __init__(self, program_id: str, guest_token: str, stream: Any, address: str) -> None:
        self.program_id = program_id
        self.guest_token = guest_token  # admits the process of a native program
        self.ended: Ended | None = None
        self._stream = stream
        self._address = address

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Events as they come; `Ended` is the last.

        Raises:
            RuntimeLost: the runtime went away with the program.
        """
        try:
            async for frame in self._stream:
                for message in frame.events:
                    event = _convert.event_from_proto(message)
                    if isinstance(event, Accepted):
                        continue
                    yield event
                    if isinstance(event, Ended):
                        self.ended = event
                        return
        except grpc.aio.AioRpcError as e:
            error = from_rpc(e, self._address)
            raise (RuntimeLost() if isinstance(error, Unavailable) else error) from e
        raise RuntimeLost  # the stream ended before the program did

    async def wait(self) -> Ended:
        """Read and drop the other events until the program has ended."""
        async for _ in self:
            pass
        if self.ended is None:
            raise InternalError(detail="the events ended without an end")
        return self.ended

    def cancel(self) -> None:
        """Stop following. A program of `AsyncClient.run` ends with it; one that was launched goes on."""
        self._stream.cancel()


class Resumed:
    """A stream whose first frame has been read in part."""

    def __init__(self, first: programs_pb2.ProgramEvents, stream: Any) -> None:
        self._first = first
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[programs_pb2.ProgramEvents]:
        if self._first.events:
            yield self._first
        while (frame := await self._stream.read()) is not grpc.aio.EOF:  # read(), as before: grpc allows one style
            yield frame

    def cancel(self) -> None:
        """Cancel the call."""
        self._stream.cancel()
