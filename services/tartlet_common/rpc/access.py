"""The table of which identity may call which method (docs/security.md), enforced by every server that speaks TLS.

A caller's identity is a DNS name among its certificate's subject alternative names: `<role>.<domain>`, where the domain
names one release (or `<role>` alone, where the server has no domain). Names are compared whole, so neither the name of
another release nor that of a Service gives a role. A Unix socket has no identities: its directory is private, so only
the directory's owner can call.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio

from tartlet_common.errors.registry import PermissionDenied
from tartlet_common.rpc.aborts import abort

IDENTITIES = frozenset({"client", "gateway", "runtime", "control", "worker", "operator"})
"""The identities. A certificate carries one as the DNS name that `identity_name` returns."""

_PROGRAMS = frozenset({"client", "gateway", "runtime", "operator"})
_OPERATORS = frozenset({"operator"})

ACCESS: dict[str, frozenset[str]] = {
    **dict.fromkeys(
        (
            f"/tartlet.v1.Programs/{m}"
            for m in (
                "Launch",
                "Attach",
                "Send",
                "Kill",
                "Leave",
                "List",
                "Validate",
                "Upload",
                "RuntimeState",
                "ExportJournal",
                "ImportJournal",
                "ReadJournal",
            )
        ),
        _PROGRAMS,
    ),
    "/tartlet.v1.Control/Connect": frozenset({"runtime"}),
    "/tartlet.v1.Control/FetchBlob": frozenset({"operator", "gateway", "runtime"}),
    "/tartlet.v1.Control/Locate": frozenset({"runtime"}),
    "/tartlet.v1.Control/State": frozenset({"runtime", "operator"}),
    "/tartlet.v1.Control/WatchEngines": _OPERATORS,
    "/tartlet.v1.Control/WatchState": frozenset({"gateway", "operator"}),
    "/tartlet.v1.Control/WatchProgram": frozenset({"gateway", "operator"}),
    "/tartlet.v1.Control/Cordon": _OPERATORS,
    "/tartlet.v1.Control/Drain": _OPERATORS,
    "/tartlet.v1.Control/Resume": _OPERATORS,
    "/tartlet.v1.Control/SetOrder": _OPERATORS,
    "/tartlet.v1.Control/EndSession": frozenset({"operator", "gateway"}),
    "/tartlet.v1.Store/Ask": frozenset({"gateway"}),
    "/tartlet.v1.Catalogue/Upload": frozenset({"operator", "gateway"}),
    "/tartlet.v1.Catalogue/Put": frozenset({"operator", "gateway"}),
    "/tartlet.v1.Catalogue/Delete": frozenset({"operator", "gateway"}),
    "/tartlet.v1.Catalogue/Get": frozenset({"operator", "gateway", "runtime"}),
    "/tartlet.v1.Catalogue/List": frozenset({"operator", "gateway", "runtime"}),
    "/tartlet.v1.Engine/Connect": frozenset({"worker"}),
    "/tartlet.v1.Engine/PutBlob": frozenset({"worker"}),
}
"""Method -> identities that may call it. A method that is missing here can't be called over TLS."""


_TENANT: Final = "tenant."
_SHOWN: Final = 3
"""Names of an unknown certificate that a refusal shows."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of a certificate: its role, "" for none, and its tenant, "" if it names none."""

    role: str = ""
    tenant: str = ""


def identity_name(role: str, domain: str) -> str:
    """Return the DNS name that a role's certificate must carry.

    Example:
        >>> identity_name("worker", "tartlet.prod.tartlet.internal"), identity_name("worker", "")
        ('worker.tartlet.prod.tartlet.internal', 'worker')
    """
    return f"{role}.{domain}" if domain else role


def caller_of(names: Iterable[bytes], domain: str) -> Caller:
    """Return whom a certificate's DNS names stand for in the release of `domain`. Other names mean nothing.

    A certificate that names several roles or several tenants has no role.

    Example:
        >>> caller_of([b"worker.r.ns.internal", b"tenant.team-a.r.ns.internal"], "r.ns.internal")
        Caller(role='worker', tenant='team-a')
        >>> caller_of([b"client", b"tenant.a", b"tenant.b"], "")
        Caller(role='', tenant='')
        >>> caller_of([b"operator.x.svc"], "r.ns.internal"), caller_of([b"operator.x.svc"], "")
        (Caller(role='', tenant=''), Caller(role='', tenant=''))
    """
    texts = [name.decode("ascii", "replace") for name in names]
    suffix = f".{domain}" if domain else ""
    own = {text.removesuffix(suffix) for text in texts if text.endswith(suffix)}
    roles = own & IDENTITIES
    tenants = {name.removeprefix(_TENANT) for name in own if name.startswith(_TENANT) and name != _TENANT}
    if len(roles) != 1 or len(tenants) > 1:
        return Caller()
    return Caller(roles.pop(), tenants.pop() if tenants else "")


def dns_names(auth: Mapping[str, Iterable[bytes]]) -> list[bytes]:
    """Return the DNS names of a caller's certificate, from what gRPC says of the connection.

    Names of other kinds (URI, email) don't count. gRPC cuts a name at its first NUL byte, so a certificate in which one
    of the names goes on behind a NUL has no name at all.
    """
    names = list(auth.get("peer_dns", ()))
    for pem in auth.get("x509_pem_cert", ()):
        certificate = ssl.PEM_cert_to_DER_cert(pem.decode("ascii"))
        if not any(name + b"\0" in certificate for name in names):  # in DER, another field follows without one
            return names
    return []


_calling: ContextVar[Caller | None] = ContextVar("calling", default=None)


def calling() -> Caller:
    """Return the caller of the call that runs now. Without TLS, and outside of a call, that caller has no role."""
    return _calling.get() or Caller()


def may_call(method: str, role: str) -> bool:
    """Whether a caller of this role may call `method`."""
    return role in ACCESS.get(method, frozenset())


_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class AccessInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls that `ACCESS` doesn't allow, before their handler runs, and tells handlers their caller."""

    def __init__(self, domain: str) -> None:
        """`domain`: the release whose certificates count; "": names without a domain count."""
        self._domain = domain

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """Wrap the method's handler with the check."""
        handler = await continuation(handler_call_details)
        return handler if handler is None else _guarded(handler, handler_call_details.method, self._domain)


def _guarded(handler: Any, method: str, domain: str) -> _Handler:
    async def check(context: _Context) -> None:
        names = dns_names(context.auth_context())
        caller = caller_of(names, domain)
        if not may_call(method, caller.role):
            error = PermissionDenied(caller=caller.role or _unknown(names, domain), method=method)
            await abort(context, grpc.StatusCode.PERMISSION_DENIED, error)
        _calling.set(caller)  # gRPC runs each call in a task of its own, so this is the call's alone

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


def _unknown(names: list[bytes], domain: str) -> str:
    """Describe a certificate without a role of this release, so that a wrong `tls_domain` is seen at once."""
    shown = ", ".join(name.decode("ascii", "replace")[:128] for name in names[:_SHOWN]) or "no DNS name"
    wanted = f"one {identity_name('<role>', domain)} and at most one {identity_name(f'{_TENANT}<name>', domain)}"
    return f"an unknown identity ({shown}, where {wanted} is expected)"
