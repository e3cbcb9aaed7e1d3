"""Pools of engines, and which engines a program may use. Pure; control and runtimes decide by the same rules.

A pool belongs to a tenant, on Kubernetes a namespace. A tenant's programs use the engines of its own pools, and those
of others only where control's setting `shared_pools` names the pool. Engines without an owner serve everyone: those of
workers that dial control's Unix socket without naming a pool.
"""

from __future__ import annotations

from typing import Final, NamedTuple

OWN, EVERYONES, SHARED = range(3)
"""Ranks of engines for a tenant: its own are preferred to everyone's, these to those that other tenants share."""


class Home(NamedTuple):
    """Where an engine belongs."""

    owner: str | None = None  # the tenant; None: everyone's
    pool: str = ""  # the pool's name, "" if the worker names none
    shared: bool = False  # whether control's settings share the pool with every tenant

    @property
    def path(self) -> str:
        """The pool as `TENANT/POOL`.

        Example:
            >>> Home("team-a", "demo").path, Home().path
            ('team-a/demo', '/')
        """
        return f"{self.owner or ''}/{self.pool}"


class Reach(NamedTuple):
    """The engines that a program may use: those of its tenant, or of one pool that its launch names."""

    tenant: str = ""
    pool: str = ""  # "TENANT/POOL", "TENANT/*", or "": every pool that the tenant may use

    @classmethod
    def of(cls, tenant: str, pool: str) -> Reach:
        """Return the reach of a launch: "POOL" is one of its own tenant, "*" every pool that the tenant may use.

        Example:
            >>> Reach.of("team-a", "demo")
            Reach(tenant='team-a', pool='team-a/demo')
        """
        if pool == "*":  # said outright, where "" would leave it to the catalogue's entry
            return cls(tenant)
        return cls(tenant, f"{tenant}/{pool}" if pool and "/" not in pool else pool)

    def names(self, home: Home) -> bool:
        """Whether a launch that names a pool names this one; every pool is named by a launch without one."""
        owner, _, pool = self.pool.partition("/")
        return not self.pool or (owner == (home.owner or "") and pool in ("*", home.pool))

    def rank(self, home: Home) -> int | None:
        """Return how near an engine is, lower being preferred, or None if the program may not use the engine.

        Example:
            >>> a = Reach("a")
            >>> a.rank(Home("a")), a.rank(Home()), a.rank(Home("b", shared=True)), a.rank(Home("b"))
            (0, 1, 2, None)
            >>> Reach("a", "a/big").rank(Home("a", "small")) is None
            True
        """
        if not self.names(home):
            return None
        if home.owner is None:
            return EVERYONES
        if home.owner == self.tenant:
            return OWN
        return SHARED if home.shared else None


EVERYONES_HOME: Final = Home()
"""The home of an engine whose worker names no pool and has no certificate."""
ANYWHERE: Final = Reach()
"""The reach of a program without a tenant that names no pool."""


def is_shared(owner: str, pool: str, shared_pools: frozenset[str]) -> bool:
    """Return whether control's settings share a pool.

    Example:
        >>> [is_shared("ops", pool, frozenset({"ops/demo", "lab/*"})) for pool in ("demo", "other")]
        [True, False]
        >>> is_shared("lab", "any", frozenset({"ops/demo", "lab/*"}))
        True
    """
    return not shared_pools.isdisjoint((f"{owner}/{pool}", f"{owner}/*"))
