"""Bounds how many places each tenant uses at once, so that no tenant's requests hold up another tenant's."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator


class Turns:
    """Tenants' places; what a tenant asks for beyond its places waits for them in turn.

    Args:
        most: the places of each tenant.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._places: dict[str, asyncio.Semaphore] = {}
        self._using: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Hold one of a tenant's places until the block ends."""
        places = self._places.setdefault(tenant, asyncio.Semaphore(self._most))
        self._using[tenant] += 1
        try:
            async with places:
                yield
        finally:
            self._using[tenant] -= 1
            if not self._using[tenant]:
                del self._using[tenant], self._places[tenant]
