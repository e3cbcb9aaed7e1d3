"""One program's requests: those under way, and those that an earlier runtime had begun."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from tartlet_common.abi import Op, Record
from tartlet_common.errors.registry import (
    BodyTooLarge,
    Interrupted,
    InvalidArgument,
    ResourceQuotaExceeded,
    UnknownResource,
)
from tartlet_runtime.budget.ledger import Ledger, Use
from tartlet_runtime.web.asked import Asked
from tartlet_runtime.web.sending import READ_AHEAD_BYTES, May, Sender, failed, translated

MAX_OPEN: Final = 64
"""Requests that one program may have open."""
JOURNALED_BYTES: Final = 8 << 20
"""What a journal keeps of one body."""
MAX_HEAD_BYTES: Final = 64 << 10
_HELD_BYTES: Final = 4 * READ_AHEAD_BYTES
"""What the client holds for an open request, with the buffers of TLS."""
_SAME: Final = frozenset({"content-length", "content-type", "content-encoding", "etag", "last-modified"})
"""Headers by which two replies are recognised as the same."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one answer tells of a reply."""

    head: bytes  # JSON, or nothing
    body: bytes
    is_over: bool


@dataclass(slots=True)
class Exchange:
    """An open request. The program reads its body piece by piece, and no faster than that the host reads it."""

    asked: Asked
    ledger: Ledger
    stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)
    task: asyncio.Task[None] | None = None  # which answers the program's last command for it
    reply: aiohttp.ClientResponse | None = None
    hop: Asked | None = None  # the last one
    rest: bytes = b""  # read, and not told
    told_bytes: int = 0
    held_bytes: int = 0
    ticket: int = 0  # of the command that waits for an answer; 0: none does

    def hold(self, size_bytes: int) -> None:
        """Take memory of the process, until `release`.

        Raises:
            MemoryBudgetExceeded: there isn't as much.
        """
        self.ledger.take(Use.REQUESTS, size_bytes)
        self.held_bytes += size_bytes

    async def begin(self, sender: Sender, may: May) -> bytes:
        """Send the request, follow redirects, and return the head of the answer as JSON.

        Raises:
            NotAllowed, RequestFailed, MemoryBudgetExceeded: as they say.
        """
        self.hold(_HELD_BYTES + len(self.asked.body))
        hop = self.asked
        while True:
            reply = await self.stack.enter_async_context(sender.send(hop, may))
            after = hop.after(reply.status, reply.headers.get("Location"))
            if after is None:
                break
            await self.stack.aclose()
            hop = after
        self.reply, self.hop = reply, hop
        told = {
            "status": reply.status,
            "url": str(hop.url),
            "headers": [[name.lower(), value] for name, value in reply.headers.items()],
        }
        head = json.dumps(told, separators=(",", ":")).encode()
        if len(head) > MAX_HEAD_BYTES:
            raise failed(hop, f"the reply has more than {MAX_HEAD_BYTES} bytes of headers")
        return head

    async def read(self, most: int, *, whole: bool) -> tuple[bytes, bool]:
        """Return the next bytes of the body, at most `most`, and whether the body is over behind them.

        Args:
            most: bytes; 0: only tell whether a body follows.
            whole: wait until so many are there, or the body is over.

        Raises:
            RequestFailed: the connection broke.
            MemoryBudgetExceeded: the process has no memory for them.
        """
        reply, hop = self.reply, self.hop
        assert reply is not None
        assert hop is not None
        parts, size = [self.rest], len(self.rest)
        ended, self.rest = False, b""
        with translated(hop):
            while size < most and (whole or not size):
                piece = await reply.content.readany()
                if not piece:
                    ended = True
                    break
                self.hold(len(piece))
                parts.append(piece)
                size += len(piece)
        data = b"".join(parts)
        self.rest = data[most:]
        told_bytes = min(size, most)
        self.ledger.give(Use.REQUESTS, told_bytes)  # whoever is told counts them
        self.held_bytes -= told_bytes
        return data[:most], size <= most and (ended or reply.content.at_eof())

    def tell(self, size_bytes: int, *, is_recorded: bool) -> None:
        """Count bytes that are told to the program.

        Raises:
            BodyTooLarge: the program's journal keeps no more of this body.
        """
        self.told_bytes += size_bytes
        if is_recorded and self.told_bytes > JOURNALED_BYTES:
            raise BodyTooLarge(url=str(self.asked.url.origin), limit=JOURNALED_BYTES)

    async def close(self) -> None:
        """Close the connection and give back the memory."""
        await self.stack.aclose()
        self.ledger.give(Use.REQUESTS, self.held_bytes)
        self.held_bytes = 0


@dataclass(slots=True)
class Lost:
    """A request that an earlier runtime had begun, and of whose reply the program knows the head."""

    asked: Asked
    head: bytes
    told_bytes: int

    def check(self) -> None:
        """Check that the request may be sent again.

        Raises:
            Interrupted: it may not.
        """
        if self.told_bytes:
            raise interrupted(self.asked, "the program knows a part of the body")
        if not self.asked.repeats:
            raise interrupted(self.asked, f"a {self.asked.method} isn't sent twice")

    def compare(self, head: bytes) -> None:
        """Check that the reply is the one that the program knows the head of.

        Raises:
            Interrupted: it is another one.
        """
        before, now = json.loads(self.head), json.loads(head)
        if before["status"] != now["status"] or _marks(before) != _marks(now):
            raise interrupted(self.asked, "the server has another reply now")


def _marks(head: dict[str, object]) -> list[list[str]]:
    headers = head["headers"]
    assert isinstance(headers, list)
    return sorted(pair for pair in headers if pair[0] in _SAME)


def interrupted(asked: Asked, why: str) -> Interrupted:
    """Return the error of a request that was lost with its runtime."""
    return Interrupted(method=asked.method, url=str(asked.url.origin), why=why)


class Exchanges:
    """The open requests of one program, by the numbers that the program chose."""

    def __init__(self) -> None:
        """Begin without one."""
        self.open: dict[int, Exchange | Lost] = {}
        self.is_closed = False
        self.spawn_close: Callable[[Exchange], object] | None = None  # while a request is open

    def admit(self, number: int) -> None:
        """Check that a request may be opened.

        Raises:
            InvalidArgument: the number is in use.
            ResourceQuotaExceeded: too many are open.
        """
        if number in self.open:
            raise InvalidArgument(argument="request", detail=f"number {number} is in use")
        if len(self.open) >= MAX_OPEN:
            raise ResourceQuotaExceeded(held=len(self.open), kind="open HTTP requests", asked=1, limit=MAX_OPEN)

    def at(self, number: int) -> Exchange | Lost:
        """Return an open request.

        Raises:
            UnknownResource: there is none of this number.
        """
        try:
            return self.open[number]
        except KeyError:
            raise UnknownResource(kind="HTTP request", id=number) from None

    def remember(self, payloads: bytes, record: Record, head_bytes: int, is_over: int, answer: bytes) -> None:
        """Take what an earlier runtime has answered.

        Args:
            payloads: what the record's offset points into.
            record: an HTTP_REQUEST or HTTP_READ.
            head_bytes: the bytes of JSON at the beginning of the answer.
            is_over: 1 if the body ended with it.
            answer: the payload of the answer.
        """
        if record.op == Op.HTTP_REQUEST:
            payload = payloads[record.offset : record.offset + record.length]
            asked = Asked.of(payload[: record.a], payload[record.a :])
            self.open[record.b] = Lost(asked, answer[:head_bytes], 0)
        lost = self.open.get(record.b)
        if isinstance(lost, Lost):
            lost.told_bytes += len(answer) - head_bytes
            if is_over:
                del self.open[record.b]

    def drop(self, number: int) -> int:
        """Close a request, whatever it does. Returns the ticket of the command that waited for it, or 0."""
        exchange = self.open.pop(number, None)
        if not isinstance(exchange, Exchange):
            return 0
        self._stop(exchange)
        return exchange.ticket

    def close(self) -> None:
        """Close all requests: the program has ended."""
        self.is_closed = True
        for number in list(self.open):
            self.drop(number)

    def _stop(self, exchange: Exchange) -> None:
        if exchange.task is not None and not exchange.task.done():
            exchange.task.cancel()  # which closes the exchange
        elif self.spawn_close is not None:
            self.spawn_close(exchange)
