"""Messages from the client: the waits for one, in order, and messages that no wait has taken.

A wait may end before a message comes, by a timeout or because its task is cancelled. The request to the host stays and
serves the next wait. So no message is lost, and a program that waits again and again does not pile up requests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator
from typing import Any

from inferlet._generated import packers
from inferlet._wire.channel import Answer, Decoder, channel


class Received(Answer):
    """The message that one `receive` gives."""

    def __init__(self, inbox: Receiving, decode: Decoder) -> None:
        super().__init__(loop=channel.loop)
        self._inbox = inbox
        self._decode = decode
        self._untaken: bytes | None = None  # the message, until a task has got it

    def take(self, message: bytes) -> None:
        """Take the message that has come."""
        self._untaken = message
        self.set_result(self._decode(0, 0, 0, message))

    def cancel(self, msg: Any = None) -> bool:
        """End the wait."""
        channel.listeners.pop(self, None)
        return super().cancel(msg)

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            message = yield from super().__await__()
        except asyncio.CancelledError:
            if self._untaken is not None:  # the message came just before the task was cancelled
                self._inbox.give_back(self._untaken)
            raise
        finally:
            self._untaken = None
        return message


class Receiving:
    """The program's inbox: messages that the host has delivered, and requests for more."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: deque[bytes] = deque()

    def next(self, decode: Decoder) -> Received:
        """Wait for the next message, after the waits that began earlier."""
        if channel.loop is None:
            raise RuntimeError("no program is running: messages can be received from main() on")
        received = Received(self, decode)
        if self._kept:
            received.take(self._kept.popleft())
            return received
        channel.listeners[received] = None
        if len(channel.listeners) > channel.receives:
            channel.receives += 1
            channel.call(self._came, *packers.receive()).add_done_callback(self._answered)
        return received

    def untaken(self) -> list[bytes]:
        """Return the messages that the program was given and has not taken."""
        return list(self._kept)

    def give_back(self, message: bytes) -> None:
        """Take back a message that was not taken. It is the next message."""
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
        """End the last wait with an error if the host has refused the request."""
        if asked.cancelled() or (error := asked.exception()) is None:
            return
        channel.receives -= 1
        if channel.listeners:
            last, _ = channel.listeners.popitem()
            last.set_exception(error)
