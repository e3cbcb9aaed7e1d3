"""Follows control for each tenant whose pages are open: one stream for a tenant, whatever the number of pages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from tartlet.watching import watch_state
from tartlet_common.errors.registry import TartletError
from tartlet_gateway.live.feed import Feed, View
from tartlet_gateway.runs.backends import Backends
from tartlet_gateway.runs.caller import Caller

log = logging.getLogger("tartlet.gateway")

EVERY_S: Final = 0.25
AGAIN_S: Final = 1.0
"""Seconds until control is asked again after it went away."""


class Hub:
    """The feeds of all tenants that are looked at."""

    def __init__(self, backends: Backends) -> None:
        self._backends = backends
        self._feeds: dict[str | None, Feed] = {}
        self._following: dict[str | None, asyncio.Task[None]] = {}

    @asynccontextmanager
    async def view(self, caller: Caller) -> AsyncIterator[View]:
        """Look at the state of the caller's tenant, until the block ends."""
        tenant = caller.tenant
        feed = self._feeds.setdefault(tenant, Feed())
        view = feed.open()
        if tenant not in self._following:
            self._following[tenant] = asyncio.create_task(self._follow(caller, feed))
        try:
            yield view
        finally:
            feed.close(view)
            if not feed.watched:
                del self._feeds[tenant]
                task = self._following.pop(tenant)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def _follow(self, caller: Caller, feed: Feed) -> None:
        client = self._backends.of(caller).client
        while True:
            try:
                async for change in watch_state(client, EVERY_S):
                    feed.apply(change)
            except TartletError as e:
                log.debug("control is away: %s", e)
            except Exception:
                log.exception("the state of control can't be read")
            feed.lost()
            await asyncio.sleep(AGAIN_S)
