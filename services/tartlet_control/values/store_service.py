"""The gRPC service Store: values of tenants that expire, such as a gateway's stored responses."""

from __future__ import annotations

import asyncio
from typing import Any, Final, TypeAlias

import grpc.aio

from tartlet_common.abi import Op
from tartlet_common.errors.registry import FrameTooLarge, InvalidArgument, TartletError, Unavailable
from tartlet_common.rpc.error_proto import error_to_proto
from tartlet_common.rpc.tenancy import scope_of
from tartlet_control.core.core import Core
from tartlet_control.tables.shared.expiring import dated, expiry, undated
from tartlet_control.tables.shared.store import HIDDEN, MAX_DOCUMENT_BYTES, MAX_KEY_BYTES, Request
from tartlet_protos import control_pb2, control_pb2_grpc

ANSWER_S: Final = 5.0
"""How long a store elsewhere may take."""
_OPS: Final = {
    control_pb2.StoreRequest.GET: Op.STORE_GET,
    control_pb2.StoreRequest.SET: Op.STORE_SET,
    control_pb2.StoreRequest.DELETE: Op.STORE_DELETE,
}
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class StoreService(control_pb2_grpc.StoreServicer):
    """Serves the service."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def Ask(self, request: control_pb2.StoreRequest, context: Context) -> control_pb2.StoreReply:  # noqa: N802
        """Read, write or delete one value of a tenant."""
        try:
            tenant = scope_of(context).own(request.tenant, "the store")
            found, value = await self._answer(tenant, self._asked(request))
        except TartletError as e:
            return control_pb2.StoreReply(error=error_to_proto(e))
        return control_pb2.StoreReply(found=found, value=value)

    def _asked(self, request: control_pb2.StoreRequest) -> Request:
        op = _OPS.get(request.kind)
        key = HIDDEN + request.key
        if op is None or not 0 < len(request.key.encode()) < MAX_KEY_BYTES:
            raise InvalidArgument(argument="key", detail=f"a known kind, and 1 to {MAX_KEY_BYTES - 1} bytes")
        now_s = self._core.clock.unix_ns() / 1e9
        if op is not Op.STORE_SET:
            return Request(int(op), key, now_s=now_s)
        if len(request.value) > MAX_DOCUMENT_BYTES:
            raise FrameTooLarge(size=len(request.value), what="bytes in a stored value", limit=MAX_DOCUMENT_BYTES)
        if not request.expires_unix_s > now_s:  # also true if it is not a number
            raise InvalidArgument(argument="expires_unix_s", detail="a time to come")
        value = dated(request.value, request.expires_unix_s)
        return Request(int(op), key, value, now_s=now_s, existing=request.existing)

    async def _answer(self, tenant: str, request: Request) -> tuple[bool, bytes]:
        answered: asyncio.Future[tuple[int, bytes, TartletError | None]] = asyncio.get_running_loop().create_future()

        def answer(found: int, value: bytes, error: TartletError | None) -> None:
            if not answered.done():
                answered.set_result((found, value, error))

        self._core.lifecycle.store.ask(tenant, request, answer)
        try:
            async with asyncio.timeout(ANSWER_S):
                found, value, error = await answered
        except TimeoutError as e:
            raise Unavailable(what="the store", detail=f"it did not answer for {ANSWER_S:g} s") from e
        if error is not None:
            raise error
        if value and expiry(value) <= request.now_s:
            return False, b""
        return bool(found), undated(value)
