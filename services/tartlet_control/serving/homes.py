"""Whose engine a worker brings: the tenant that its certificate names, and the pool that its Hello names. Pure."""

from __future__ import annotations

from typing import Any, TypeAlias

import grpc.aio

from tartlet_common.engine.pools import Home, is_shared
from tartlet_common.errors.registry import InvalidArgument, PermissionDenied
from tartlet_common.rpc.access import Caller, calling
from tartlet_common.rpc.tenancy import secured

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_POOL_CHARS = 128


def worker_of(context: Context) -> Caller | None:
    """Return the worker that makes a call, as its certificate names it; None: it dials a Unix socket."""
    return calling() if secured(context) else None


def home_of(pool: str, worker: Caller | None, shared_pools: frozenset[str]) -> Home:
    """Return where a worker's engine belongs.

    Over TLS the certificate names the owner, "" if it names none, and a Hello that says otherwise is refused. Who may
    use control's Unix socket may name any owner; without one, the engine is everyone's.

    Args:
        pool: what Hello says: `OWNER/POOL`, or `POOL`, or "".
        worker: the certificate's owner, None without TLS.
        shared_pools: control's setting.

    Raises:
        PermissionDenied: the certificate isn't the claimed owner's.
        InvalidArgument: the pool isn't one name.

    Example:
        >>> b = Caller("worker", "b")
        >>> home_of("b/demo", b, frozenset())
        Home(owner='b', pool='demo', shared=False)
        >>> home_of("", None, frozenset())
        Home(owner=None, pool='', shared=False)
    """
    claimed, slash, name = pool.rpartition("/")
    if len(pool) > _POOL_CHARS or "/" in claimed or "*" in pool or "," in pool or (slash and not name):
        raise InvalidArgument(argument="pool", detail=f"{pool[:_POOL_CHARS]!r} is no pool: write TENANT/POOL or POOL")
    owner: str | None = claimed or None
    if worker is not None:
        owner = worker.tenant
        if slash and claimed != owner:
            raise PermissionDenied(caller=f"a worker of tenant {owner!r}", method=f"Engine/Connect for pool {pool}")
    return Home(owner, name, owner is not None and is_shared(owner, name, shared_pools))
