"""Decides which tenant's programs a caller may see and change; every service asks this module.

A program and an entry of the catalogue belong to a tenant. In Kubernetes a tenant is a namespace; "" is the tenant of
callers that name none. A client acts for the one tenant that its certificate names (`tenant.<name>` beside `client`,
both in the release's domain).
Roles that serve many tenants, and the owner of a Unix socket's directory, act for all. If such a caller sends the
metadata `tartlet-tenant-bin`, the call acts for that tenant alone: this is how a runtime relays a client's call. The
metadata never widens the rights of a certificate. An object of another tenant is answered like one that doesn't exist.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import grpc.aio

from tartlet_common.errors.registry import PermissionDenied
from tartlet_common.rpc.access import Caller, calling

HEADER: Final = "tartlet-tenant-bin"
"""The metadata key that narrows a call to one tenant; its value is the tenant's name in UTF-8."""
EVERY_TENANT: Final = frozenset({"operator", "gateway", "runtime"})
"""Identities that act for all tenants."""

Metadata: TypeAlias = "tuple[tuple[str, str | bytes], ...]"
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


@dataclass(frozen=True, slots=True)
class Scope:
    """The tenant that a call acts for; None: all tenants.

    Example:
        >>> Scope("a").allows("a"), Scope("a").allows("b"), Scope(None).allows("b")
        (True, False, True)
    """

    tenant: str | None = None

    def allows(self, tenant: str) -> bool:
        """Whether this call may see objects of `tenant`."""
        return self.tenant is None or tenant == self.tenant

    def shows(self, tenant: str, asked: str) -> bool:
        """Whether a listing that asks for the tenant `asked` ("": for all) shows objects of `tenant`."""
        return self.allows(tenant) and (not asked or tenant == asked)

    def own(self, asked: str, what: str) -> str:
        """Return the tenant of a new object: the tenant `asked`, or the caller's if `asked` is "".

        Raises:
            PermissionDenied: the caller doesn't act for that tenant; `what` names the refused action.
        """
        if self.allows(asked):
            return asked
        if asked:
            raise PermissionDenied(caller=f"tenant {self.tenant!r}", method=f"{what} for tenant {asked[:64]!r}")
        return self.tenant or ""

    @property
    def metadata(self) -> Metadata:
        """The metadata that makes a call act for this tenant alone."""
        return () if self.tenant is None else ((HEADER, self.tenant.encode()),)


EVERYONE: Final = Scope()
"""All tenants."""


def scope_of(context: _Context) -> Scope:
    """Return the scope of a call."""
    return decide(calling() if secured(context) else None, context.invocation_metadata() or ())


def secured(context: _Context) -> bool:
    """Whether a call came over TLS. A Unix socket has none: its directory protects the socket."""
    return b"ssl" in context.auth_context().get("transport_security_type", ())


def decide(caller: Caller | None, metadata: Iterable[tuple[str, str | bytes]]) -> Scope:
    """Return the scope of a call with `metadata` by the owner of a certificate (None: no TLS).

    Example:
        >>> decide(Caller("client", "team-a"), [])
        Scope(tenant='team-a')
        >>> decide(Caller("client"), [(HEADER, b"team-a")])  # metadata widens nothing
        Scope(tenant='')
        >>> decide(Caller("operator"), []), decide(Caller("operator"), [(HEADER, b"team-a")])
        (Scope(tenant=None), Scope(tenant='team-a'))
    """
    if caller is not None and caller.role not in EVERY_TENANT:
        return Scope(caller.tenant)
    for key, value in metadata:
        if key == HEADER:
            return Scope(value.decode("utf-8", "replace") if isinstance(value, bytes) else value)
    return EVERYONE
