"""Deletes runs that ended long ago: a few at a time, found in the store, without a timer for each."""

from __future__ import annotations

import asyncio
from heapq import nsmallest
from typing import Final

from tartlet_operator.api.meta import Key
from tartlet_operator.machinery.context import Context
from tartlet_operator.machinery.store import Store

SWEEP_S: Final = 10.0
BATCH: Final = 200
"""Most runs that one sweep queues, so that deletions never crowd out other work."""


def due(store: Store, now: float, most: int = BATCH) -> list[Key]:
    """Return the runs whose time to live is over, the longest ago first.

    Args:
        store: the objects seen.
        now: Unix time, s.
        most: number of runs to return at most.
    """
    over = ((seen.expires_s, key) for key, seen in store.runs.items() if 0 < seen.expires_s <= now)
    return [key for _, key in nsmallest(most, over)]


async def sweep(ctx: Context) -> None:
    """Queue runs that are to be deleted until cancelled; their reconcile decides again and deletes."""
    while True:
        await asyncio.sleep(SWEEP_S)
        for key in due(ctx.store, ctx.unix_s):
            ctx.queue.add(key)
