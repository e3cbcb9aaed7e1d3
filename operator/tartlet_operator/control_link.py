"""Control as the operator asks it: its state, and its catalogue as fingerprints."""

from __future__ import annotations

import json
from collections.abc import Awaitable
from typing import Any, Final, TypeVar

import grpc
import grpc.aio

from tartlet_common import rpc, wire
from tartlet_common.errors import TartletError, Unavailable, UnknownInferlet
from tartlet_operator.catalogue import fingerprint
from tartlet_protos import common_pb2, control_pb2, control_pb2_grpc

_TIMEOUT_S: Final = 10.0
_STATE_TIMEOUT_S: Final = 2.0
T = TypeVar("T")


class ControlLink:
    """Unary calls to control; each raises a `TartletError`, `Unavailable` when control doesn't answer."""

    def __init__(self, address: str, tls: rpc.Tls | None) -> None:
        self._address = address
        self._channel = rpc.make_channel(address, tls)
        self._control = control_pb2_grpc.ControlStub(self._channel)
        self._catalogue = control_pb2_grpc.CatalogueStub(self._channel)

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()

    async def state(self) -> dict[str, Any]:
        """Engines, programs and models, and control's incarnation."""
        reply = await self._answer(self._control.State(control_pb2.StateRequest(), timeout=_STATE_TIMEOUT_S))
        state: dict[str, Any] = json.loads(reply.json)
        return state

    async def fingerprints(self, tenant: str) -> dict[str, str]:
        """What the catalogue holds for a tenant, by name."""
        request = control_pb2.CatalogueListRequest(tenant=tenant)
        reply = await self._answer(self._catalogue.List(request, timeout=_TIMEOUT_S))
        return {e.name: fingerprint(e) for e in reply.entries}

    async def put(self, entry: control_pb2.CatalogueEntry) -> None:
        """Add or replace an entry."""
        request = control_pb2.PutRequest(entries=[entry])
        reply = await self._answer(self._catalogue.Put(request, timeout=_TIMEOUT_S))
        error = wire.error_from_proto(reply.errors[0])
        if error is not None:
            raise error

    async def delete(self, tenant: str, name: str) -> None:
        """Forget an entry, if there is one."""
        request = control_pb2.DeleteRequest(tenant=tenant, name=name)
        reply = await self._answer(self._catalogue.Delete(request, timeout=_TIMEOUT_S))
        error = wire.error_from_proto(reply.error)
        if error is not None and not isinstance(error, UnknownInferlet):
            raise error

    async def _answer(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except grpc.aio.AioRpcError as e:
            raise _translated(e, self._address) from e


def _translated(e: grpc.aio.AioRpcError, address: str) -> TartletError:
    for key, value in e.trailing_metadata() or ():
        if key == "tartlet-error-bin" and isinstance(value, bytes):
            error = wire.error_from_proto(common_pb2.Error.FromString(value))
            if error is not None:
                return error
    return Unavailable(what=f"control at {address}", detail=e.details() or e.code().name)
