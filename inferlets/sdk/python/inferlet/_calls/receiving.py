"""Messages from the client: who waits for one, in order, and those that nobody has taken.

A wait may end before a message comes (a timeout, a cancelled task). What was asked of the host for it stands, and
serves whoever waits next: so no message is lost, and a program that looks now and then doesn't ask ever more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator
from typing import Any

from inferlet._generated import abi
from inferlet._wire.channel import Answer, Decoder, channel


class Received(Answer):
    """The message that one `receive` gives."""

    def __init__(self, inbox: Receiving, decode: Decoder) -> None:
        super().__init__(loop=channel.loop)
        self._inbox = inbox
        self._decode = decode
        self._untaken: bytes | None = None  # the message, until somebody has awaited it

    def take(self, message: bytes) -> None:
        """It has come."""
        self._untaken = message
        self.set_result(self._decode(0, 0, 0, message))

    def cancel(self, msg: Any = None) -> bool:
        """Wait no more."""
        channel.listeners.pop(self, None)
        return super().cancel(msg)

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            message = yield from super().__await__()
        except asyncio.CancelledError:
            if self._untaken is not None:  # it came in the moment in which its task was cancelled
                self._inbox.give_back(self._untaken)
            raise
        finally:
            self._untaken = None
        return message


class Receiving:
    """The program's inbox, as far as it has asked the host for messages."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: deque[bytes] = deque()

    def next(self, decode: Decoder) -> Received:
        """The next message that nobody waits for already."""
        if channel.loop is None:
            raise RuntimeError("no program is running: messages can be received from main() on")
        received = Received(self, decode)
        if self._kept:
            received.take(self._kept.popleft())
            return received
        channel.listeners[received] = None
        if len(channel.listeners) > channel.receives:
            channel.receives += 1
            channel.call(self._came, abi.OP_RECEIVE).add_done_callback(self._answered)
        return received

    def give_back(self, message: bytes) -> None:
        """A message that was not taken: it is the next one."""
        if channel.listeners:
            self._hand(message)
        else:
            self._kept.appendleft(message)

    def _came(self, _a: int, _b: int, _c: int, message: bytes) -> None:
        channel.receives -= 1
        self._hand(message)

    def _hand(self, message: bytes) -> None:
        if not channel.listeners:
            self._kept.append(message)
            return
        first = next(iter(channel.listeners))
        del channel.listeners[first]
        first.take(message)

    def _answered(self, asked: asyncio.Future[Any]) -> None:
        """The host may have refused it: then the last one who waits gets no message."""
        if asked.cancelled() or (error := asked.exception()) is None:
            return
        channel.receives -= 1
        if channel.listeners:
            last, _ = channel.listeners.popitem()
            last.set_exception(error)
