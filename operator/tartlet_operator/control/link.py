"""Control as the operator asks it: its engines, and its catalogue as fingerprints."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, TypeVar

import grpc
import grpc.aio

from tartlet_common.errors.registry import TartletError, Unavailable, UnknownInferlet
from tartlet_common.rpc import endpoints, error_proto
from tartlet_common.rpc.aborts import ERROR_KEY
from tartlet_common.rpc.paging import pages
from tartlet_operator.control.catalogue import fingerprint
from tartlet_operator.control.open_call import OpenCall
from tartlet_operator.control.orders import Own, order_of
from tartlet_protos import common_pb2, control_pb2, control_pb2_grpc

_TIMEOUT_S: Final = 10.0
_ANSWER_S: Final = 2.0
"""Control may be late by this much before it counts as silent."""
_PUT_BYTES: Final = 3 << 20
_PUT_EVERY_S: Final = 0.01
"""Least time between two puts: a request costs both ends more than ten entries do."""
T = TypeVar("T")


@dataclass(slots=True)
class _Put:
    entry: control_pb2.CatalogueEntry
    done: bool = False
    error: TartletError | None = None


class _Stubs:
    """The stubs of one channel."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.control: control_pb2_grpc.ControlAsyncStub = control_pb2_grpc.ControlStub(channel)
        self.catalogue: control_pb2_grpc.CatalogueAsyncStub = control_pb2_grpc.CatalogueStub(channel)


class ControlLink:
    """Calls to control. Each raises a `TartletError`; `Unavailable` means that control doesn't answer."""

    def __init__(self, address: str, tls: endpoints.Tls | None) -> None:
        self._address = address
        self._dialer = endpoints.Dialer(address, tls, role="control")
        self._stubs = _Stubs(self._dialer.channel)
        self._puts: list[_Put] = []
        self._putting = asyncio.Lock()
        self._put_call: OpenCall[control_pb2.PutRequest, control_pb2.PutReply] = OpenCall()
        self._put_s = 0.0  # when something was put last, by the loop's clock

    async def close(self) -> None:
        """Close the connection."""
        self._put_call.close()
        await self._dialer.close()

    async def engines(self, every_s: float) -> AsyncGenerator[control_pb2.EnginesReply]:
        """Yield the engines whenever one changes, and at least every `every_s`.

        Ends when there are new certificates; the next call uses them.
        """
        stubs, patience_s = self._current(), _ANSWER_S
        call = stubs.control.WatchEngines(control_pb2.WatchEnginesRequest(every_s=every_s))
        try:
            while stubs is self._current():
                async with asyncio.timeout(patience_s):
                    reply = await self._answer(call.read())
                if not isinstance(reply, control_pb2.EnginesReply):  # the end of the stream
                    raise Unavailable(what=f"control at {self._address}", detail="it has ended")
                yield reply
                patience_s = every_s + _ANSWER_S
        except TimeoutError:
            raise Unavailable(what=f"control at {self._address}", detail=f"nothing for {patience_s:g} s") from None
        finally:
            call.cancel()

    async def set_order(self, pool: str, own: Own) -> None:
        """Give a pool, NAMESPACE/NAME, what it has for its own, and what settings say of the rest."""
        request = control_pb2.SetOrderRequest(order=order_of(pool, own))
        reply = await self._answer(self._current().control.SetOrder(request, timeout=_TIMEOUT_S))
        error = error_proto.error_from_proto(reply.error)
        if error is not None:
            raise error

    async def fingerprints(self, tenant: str) -> dict[str, str]:
        """Return the fingerprints of a tenant's catalogue entries, by name."""

        def page(token: str) -> Awaitable[Any]:
            request = control_pb2.CatalogueListRequest(tenant=tenant, page_token=token)
            return self._answer(self._current().catalogue.List(request, timeout=_TIMEOUT_S))

        return {e.name: fingerprint(e) async for reply in pages(page) for e in reply.entries}

    async def put(self, entry: control_pb2.CatalogueEntry) -> None:
        """Add or replace an entry.

        A first entry is sent at once; entries that follow shortly after are sent together.
        """
        put, loop = _Put(entry), asyncio.get_running_loop()
        self._puts.append(put)
        async with self._putting:
            while not put.done:
                await asyncio.sleep(max(self._put_s + _PUT_EVERY_S - loop.time(), 0.0))
                self._put_s = loop.time()
                await self._put_some()
        error, put.error = put.error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # the error and this frame would hold each other, and with them the entry's source

    async def delete(self, tenant: str, name: str) -> None:
        """Delete an entry, if there is one."""
        request = control_pb2.DeleteRequest(tenant=tenant, name=name)
        reply = await self._answer(self._current().catalogue.Delete(request, timeout=_TIMEOUT_S))
        error = error_proto.error_from_proto(reply.error)
        if error is not None and not isinstance(error, UnknownInferlet):
            raise error

    async def _put_some(self) -> None:
        """Put waiting entries, the oldest first, as many as a message holds."""
        sizes = accumulate(put.entry.ByteSize() for put in self._puts)
        puts = self._puts[: max(sum(size <= _PUT_BYTES for size in sizes), 1)]
        request = control_pb2.PutRequest(entries=[put.entry for put in puts])
        errors: Sequence[TartletError | None]
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                reply = await self._answer(self._put_call.ask(self._current().catalogue.Put, request))
            errors = [error_proto.error_from_proto(e) for e in reply.errors]
            if len(errors) != len(puts):
                self._put_call.close()
                detail = f"{len(errors)} answers to {len(puts)} entries"
                raise Unavailable(what=f"control at {self._address}", detail=detail)
        except TimeoutError:
            silent = Unavailable(what=f"control at {self._address}", detail=f"no answer in {_TIMEOUT_S:g} s")
            errors = [silent] * len(puts)
        except TartletError as e:
            errors = [e] * len(puts)
        del self._puts[: len(puts)]
        for put, error in zip(puts, errors, strict=True):
            put.done, put.error = True, error

    def _current(self) -> _Stubs:
        channel = self._dialer.current()
        if channel is not self._stubs.channel:
            self._stubs = _Stubs(channel)
        return self._stubs

    async def _answer(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except grpc.aio.AioRpcError as e:
            raise _translated(e, self._address) from e


def _translated(e: grpc.aio.AioRpcError, address: str) -> TartletError:
    for key, value in e.trailing_metadata() or ():
        if key == ERROR_KEY and isinstance(value, bytes):
            error = error_proto.error_from_proto(common_pb2.Error.FromString(value))
            if error is not None:
                return error
    return Unavailable(what=f"control at {address}", detail=e.details() or e.code().name)
