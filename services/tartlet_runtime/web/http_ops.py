"""The operations HTTP_REQUEST, HTTP_READ and HTTP_CLOSE: each answered by a task of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

from tartlet_common.abi import MAX_CHUNK_BYTES, Flag, Record
from tartlet_common.capabilities import Ceilings, Grant, check_http
from tartlet_common.errors.registry import InternalError, InvalidArgument, TartletError
from tartlet_runtime.budget.ledger import Ledger
from tartlet_runtime.web.asked import Asked
from tartlet_runtime.web.exchange import Exchange, Exchanges, Part, interrupted
from tartlet_runtime.web.sending import May, Sender, failed

log = logging.getLogger(__name__)
_AWAIT = int(Flag.AWAIT)
_READ_BYTES = 64 << 10


class Answers(Protocol):
    """A program's inbox, as far as requests go."""

    def result(self, ticket: int, a: int, b: int, payload: bytes) -> None:
        """Answer a command."""

    def cancelled(self, ticket: int) -> None:
        """Tell that a command was dropped."""

    def refuse(self, record: Record, error: TartletError) -> None:
        """Answer a command with an error."""


class Asker(Protocol):
    """The program that asks."""

    web: Exchanges
    """Its open requests."""

    @property
    def inbox(self) -> Answers:
        """Where its answers go."""

    @property
    def tenant(self) -> str:
        """Whose program it is."""

    @property
    def grants(self) -> Sequence[Grant]:
        """What its launch and its entry in the catalogue allow."""

    @property
    def is_recorded(self) -> bool:
        """Whether a journal keeps what it is told."""

    @property
    def is_recovering(self) -> bool:
        """Whether its commands may have been executed by an earlier runtime."""

    def leave(self, action: Callable[[], None]) -> None:
        """Do what leaves the system, once all is stored that led to it."""

    def end(self, error: TartletError | None) -> None:
        """End the program."""


class HttpOps:
    """Makes programs' requests. All methods are called on the loop's thread."""

    def __init__(self, sender: Sender, ceilings: Ceilings, ledger: Ledger) -> None:
        """Begin without a request.

        Args:
            sender: the host's HTTP client.
            ceilings: the most that programs may reach.
            ledger: the memory of this process, of which requests take parts.
        """
        self._sender = sender
        self._ceilings = ceilings
        self._ledger = ledger
        self._tasks: set[asyncio.Task[None]] = set()

    def request(self, caller: Asker, record: Record, payload: bytes) -> None:
        """Begin a request.

        Raises:
            InvalidArgument, ResourceQuotaExceeded: the request is none, or one too many.
            NotAllowed: the program may not send it.
            Interrupted: an earlier runtime may have sent it, and it isn't sent twice.
        """
        if not record.flags & _AWAIT:
            raise InvalidArgument(argument="request", detail="its answer must be awaited")
        asked = Asked.of(payload[: record.a], payload[record.a :])
        _check_size(record.c)
        caller.web.admit(record.b)
        may = self._may(caller)
        check_http((*may.grants, may.ceiling), asked.url.origin)
        if caller.is_recovering and not asked.repeats:
            raise interrupted(asked, f"a {asked.method} isn't sent twice")
        exchange = self._open(caller, record, asked)

        async def work() -> Part:
            head = await exchange.begin(self._sender, may)
            return Part(head, *await exchange.read(record.c, whole=True))

        caller.leave(partial(self._start, caller, record, exchange, work))

    def read(self, caller: Asker, record: Record) -> None:
        """Read on in a body.

        Raises:
            UnknownResource, InvalidArgument: there is no such request, or a read of it waits already.
            Interrupted: the request was under way at an earlier runtime.
        """
        if not record.flags & _AWAIT:
            raise InvalidArgument(argument="read", detail="its answer must be awaited")
        _check_size(record.a)
        most = record.a or _READ_BYTES
        lost = caller.web.at(record.b)
        if isinstance(lost, Exchange):
            exchange = lost
            if exchange.ticket:
                raise InvalidArgument(argument="read", detail="the last command for this request isn't answered yet")
            exchange.ticket = record.ticket

            async def work() -> Part:
                return Part(b"", *await exchange.read(most, whole=bool(record.c)))
        else:
            lost.check()
            may = self._may(caller)
            exchange = self._open(caller, record, lost.asked)

            async def work() -> Part:
                lost.compare(await exchange.begin(self._sender, may))
                return Part(b"", *await exchange.read(most, whole=bool(record.c)))

        caller.leave(partial(self._start, caller, record, exchange, work))

    def close(self, caller: Asker, record: Record) -> None:
        """Close a request, whatever it does; a command that waits for it is cancelled."""
        ticket = caller.web.drop(record.b)
        if ticket:
            caller.inbox.cancelled(ticket)

    def _may(self, caller: Asker) -> May:
        return May(caller.tenant, caller.grants, self._ceilings.of_tenant(caller.tenant))

    def _open(self, caller: Asker, record: Record, asked: Asked) -> Exchange:
        exchange = Exchange(asked, self._ledger, ticket=record.ticket)
        caller.web.open[record.b] = exchange
        caller.web.spawn_close = lambda closed: self._spawn(closed.close())
        return exchange

    def _start(self, caller: Asker, record: Record, exchange: Exchange, work: Callable[[], Awaitable[Part]]) -> None:
        if caller.web.open.get(record.b) is exchange:  # else it was closed meanwhile
            exchange.task = self._spawn(self._answer(caller, record, exchange, work))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _answer(
        self, caller: Asker, record: Record, exchange: Exchange, work: Callable[[], Awaitable[Part]]
    ) -> None:
        stays = False
        try:
            part = await self._part(exchange, work)
            exchange.tell(len(part.body), is_recorded=caller.is_recorded)
            stays = not part.is_over
            self._told(caller, record, exchange, stays=stays)
            try:
                caller.inbox.result(record.ticket, len(part.head), int(part.is_over), part.head + part.body)
            except TartletError as e:
                caller.end(e)
        except TartletError as e:
            self._told(caller, record, exchange, stays=False)
            try:
                caller.inbox.refuse(record, e)
            except TartletError as more:
                caller.end(more)
        finally:
            if not stays:
                await exchange.close()

    async def _part(self, exchange: Exchange, work: Callable[[], Awaitable[Part]]) -> Part:
        try:
            async with asyncio.timeout(exchange.asked.timeout_s):
                return await work()
        except TimeoutError as e:
            raise failed(exchange.asked, f"no answer within {exchange.asked.timeout_s:g} s") from e
        except TartletError:
            raise
        except Exception as e:  # our own bug: the program that waits for this answer is told
            log.exception("an HTTP request")
            raise InternalError(detail=type(e).__name__) from e

    @staticmethod
    def _told(caller: Asker, record: Record, exchange: Exchange, *, stays: bool) -> None:
        exchange.ticket, exchange.task = 0, None
        if not stays and caller.web.open.get(record.b) is exchange:
            del caller.web.open[record.b]


def _check_size(size_bytes: int) -> None:
    if size_bytes > MAX_CHUNK_BYTES:
        raise InvalidArgument(argument="size", detail=f"{size_bytes} bytes, the limit is {MAX_CHUNK_BYTES}")
