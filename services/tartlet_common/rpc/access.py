"""The table of which identity may call which method (docs/security.md), enforced by every server that speaks TLS.

A caller's identity is a DNS name among its certificate's subject alternative names: one name for each role. A Unix
socket has no identities: its directory is private, so only the directory's owner can call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc
import grpc.aio

from tartlet_common.errors.registry import PermissionDenied
from tartlet_common.rpc.aborts import abort

IDENTITIES = frozenset({"client", "gateway", "runtime", "control", "worker", "operator"})
"""The identities. A certificate carries one as the DNS name `<identity>` or `<identity>.<anything>`."""

_PROGRAMS = frozenset({"client", "gateway", "runtime", "operator"})
_OPERATORS = frozenset({"operator"})

ACCESS: dict[str, frozenset[str]] = {
    **dict.fromkeys(
        (
            f"/tartlet.v1.Programs/{m}"
            for m in ("Launch", "Attach", "Send", "Kill", "List", "Validate", "Upload", "RuntimeState")
        ),
        _PROGRAMS,
    ),
    "/tartlet.v1.Control/Connect": frozenset({"runtime"}),
    "/tartlet.v1.Control/FetchBlob": frozenset({"operator", "gateway", "runtime"}),
    "/tartlet.v1.Control/Locate": frozenset({"runtime"}),
    "/tartlet.v1.Control/State": frozenset({"runtime", "operator"}),
    "/tartlet.v1.Control/WatchEngines": _OPERATORS,
    "/tartlet.v1.Control/Cordon": _OPERATORS,
    "/tartlet.v1.Control/Drain": _OPERATORS,
    "/tartlet.v1.Control/Resume": _OPERATORS,
    "/tartlet.v1.Catalogue/Upload": frozenset({"operator", "gateway"}),
    "/tartlet.v1.Catalogue/Put": frozenset({"operator", "gateway"}),
    "/tartlet.v1.Catalogue/Delete": frozenset({"operator", "gateway"}),
    "/tartlet.v1.Catalogue/Get": frozenset({"operator", "gateway", "runtime"}),
    "/tartlet.v1.Catalogue/List": frozenset({"operator", "gateway", "runtime"}),
    "/tartlet.v1.Engine/Connect": frozenset({"worker"}),
    "/tartlet.v1.Engine/PutBlob": frozenset({"worker"}),
}
"""Method -> identities that may call it. A method that is missing here can't be called over TLS."""


def identities(names: list[bytes]) -> frozenset[str]:
    """Return the identities that a certificate's DNS names stand for.

    Example:
        >>> sorted(identities([b"worker.tartlet.svc", b"example.org"]))
        ['worker']
    """
    return frozenset(name.decode("ascii", "replace").split(".", 1)[0] for name in names) & IDENTITIES


def may_call(method: str, callers: frozenset[str]) -> bool:
    """Whether one of the caller's identities may call `method`."""
    return bool(ACCESS.get(method, frozenset()) & callers)


_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class AccessInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls that `ACCESS` doesn't allow, before their handler runs."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """Wrap the method's handler with the check."""
        handler = await continuation(handler_call_details)
        return handler if handler is None else _guarded(handler, handler_call_details.method)


def _guarded(handler: Any, method: str) -> _Handler:
    async def check(context: _Context) -> None:
        names = list(context.auth_context().get("x509_subject_alternative_name", []))
        callers = identities(names)
        if not may_call(method, callers):
            error = PermissionDenied(caller="/".join(sorted(callers)) or "an unknown identity", method=method)
            await abort(context, grpc.StatusCode.PERMISSION_DENIED, error)

    if handler.response_streaming:

        async def stream(request: Any, context: _Context) -> Any:
            await check(context)
            result = (handler.stream_stream or handler.unary_stream)(request, context)
            if hasattr(result, "__aiter__"):
                async for message in result:
                    yield message
            else:  # a coroutine that writes through the context
                await result

        make = (
            grpc.stream_stream_rpc_method_handler if handler.request_streaming else grpc.unary_stream_rpc_method_handler
        )
        return make(stream, handler.request_deserializer, handler.response_serializer)

    async def unary(request: Any, context: _Context) -> Any:
        await check(context)
        return await (handler.stream_unary or handler.unary_unary)(request, context)

    make = grpc.stream_unary_rpc_method_handler if handler.request_streaming else grpc.unary_unary_rpc_method_handler
    return make(unary, handler.request_deserializer, handler.response_serializer)
