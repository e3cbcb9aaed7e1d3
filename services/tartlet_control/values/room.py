"""Shares the room for what waits for a Redis between tenants, so that no tenant's burst shuts out the others."""

from __future__ import annotations

from typing import Final

from tartlet_common.errors.registry import Overloaded

MAX_WAITING: Final = 16_384
"""Calls that wait, of all tenants."""
MAX_WAITING_BYTES: Final = 32 << 20
"""Bytes that they take."""


class Room:
    """Counts the calls and bytes that wait. A tenant may hold as much as is free.

    So a tenant that is alone gets half of all. Of n tenants that ask for as much as they can get, each holds one part
    of n + 1, and the last part is left for the next tenant.

    Example:
        >>> room = Room()
        >>> for _ in range(MAX_WAITING // 2):
        ...     room.check("a")
        ...     room.take("a", 100)
        >>> room.check("b")
        >>> try:
        ...     room.check("a")
        ... except Overloaded as e:
        ...     print(e.fields["limit"])
        8192
    """

    def __init__(self) -> None:
        """Begin with nothing that waits."""
        self._held: dict[str | None, tuple[int, int]] = {}  # calls and bytes, by tenant
        self.calls = 0
        self.bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether nothing more should wait."""
        return self.calls >= MAX_WAITING or self.bytes >= MAX_WAITING_BYTES

    def check(self, tenant: str) -> None:
        """Check that another call of a tenant may wait.

        Raises:
            Overloaded: as much of the tenant's waits as may.
        """
        calls, size = self._held.get(tenant, (0, 0))
        free, free_bytes = MAX_WAITING - self.calls, MAX_WAITING_BYTES - self.bytes
        if calls >= free:
            raise Overloaded(what="the tenant's share of calls that wait for the store's Redis", limit=max(0, free))
        if size >= free_bytes:
            what = "the tenant's share of bytes that wait for the store's Redis"
            raise Overloaded(what=what, limit=max(0, free_bytes))

    def take(self, tenant: str | None, size: int) -> None:
        """Note that a call waits. None: it counts against no tenant."""
        self._add(tenant, 1, size)

    def give(self, tenant: str | None, size: int) -> None:
        """Note that a call waits no more."""
        self._add(tenant, -1, -size)

    def _add(self, tenant: str | None, more: int, size: int) -> None:
        calls, held = self._held.get(tenant, (0, 0))
        self._held[tenant] = calls + more, held + size
        if not calls + more:
            del self._held[tenant]
        self.calls += more
        self.bytes += size
