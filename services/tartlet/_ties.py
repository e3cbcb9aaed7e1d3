"""Programs that end with their client: tells the server when the client leaves one on purpose.

The server can't tell a client that leaves from a connection that breaks. So it waits a while for the client of a `run`,
unless the client says that it won't come back.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, Final

import grpc.aio

from tartlet_protos import programs_pb2

_KEY_BYTES: Final = 12
_ANSWER_S: Final = 1.0
"""How long the server may take to hear of it. A program whose server doesn't hear of it ends a little later."""


class Ties:
    """The programs of one client that end with it, by the key with which the client names itself to each."""

    def __init__(self, leave: Callable[..., Awaitable[Any]]) -> None:
        """`leave` calls the server's `Leave` with a request and a timeout."""
        self._leave = leave
        self._open: dict[bytes, str] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    @staticmethod
    def new_key() -> bytes:
        """Return the key for another launch."""
        return os.urandom(_KEY_BYTES)

    def add(self, key: bytes, program_id: str) -> None:
        """Note a program."""
        self._open[key] = program_id

    def ended(self, key: bytes) -> None:
        """Forget a program that has ended."""
        self._open.pop(key, None)

    def leave(self, keys: Iterable[bytes]) -> None:
        """Tell the server, in a task, that this client doesn't come back to some programs."""
        items = [
            programs_pb2.LeaveItem(program_id=self._open.pop(key), client=key) for key in keys if key in self._open
        ]
        if items:
            task = asyncio.ensure_future(self._tell(programs_pb2.LeaveRequest(items=items)))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        """Leave all programs; return when the server has heard of it, or doesn't answer."""
        self.leave(list(self._open))
        if self._leaving:
            await asyncio.wait(self._leaving)

    async def _tell(self, request: programs_pb2.LeaveRequest) -> None:
        # a server of the last release ends programs with their calls, another one when their grace is over
        with suppress(grpc.aio.AioRpcError):
            await self._leave(request, timeout=_ANSWER_S)
