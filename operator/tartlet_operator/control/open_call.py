"""A streaming call that stays open between requests, because beginning a call costs as much as the request itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import grpc.aio

from tartlet_common.errors.registry import Unavailable

Request = TypeVar("Request")
Reply = TypeVar("Reply")


class OpenCall(Generic[Request, Reply]):
    """A call of requests with one reply each.

    Use it for one request at a time, and only for requests that may be sent twice: nobody knows how far a call got that
    ended.
    """

    def __init__(self) -> None:
        self._method: Callable[[], Any] | None = None
        self._call: Any = None

    async def ask(self, method: Callable[[], Any], request: Request) -> Reply:
        """Send a request and read its reply, in a new call if the open one has ended meanwhile.

        Args:
            method: begins a call. A method of another channel than before closes the open call.
            request: the message to send.

        Raises:
            AioRpcError: the call failed.
            Unavailable: the call ended without a reply.
        """
        if self._method is not method:
            self.close()
            self._method = method
        while True:
            kept = self._call is not None
            call = self._call = self._call or method()
            try:
                with contextlib.suppress(asyncio.InvalidStateError):  # the call has ended: reading says how
                    await call.write(request)
                reply: Reply = await call.read()
                if reply is not grpc.aio.EOF:
                    return reply
                if not kept:
                    raise Unavailable(what="control", detail="it ended a call without a reply")
            except BaseException as e:
                self.close()
                if not (kept and isinstance(e, grpc.aio.AioRpcError)):
                    raise
            else:
                self.close()

    def close(self) -> None:
        """End the open call."""
        call, self._call = self._call, None
        if call is not None:
            call.cancel()
