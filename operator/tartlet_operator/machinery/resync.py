"""Looks at every object again now and then, in case an event was lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from tartlet_common.errors.registry import TartletError
from tartlet_operator.api import RESOURCES
from tartlet_operator.api.meta import Key
from tartlet_operator.cluster.kube import ApiError
from tartlet_operator.machinery.context import Context
from tartlet_operator.machinery.watch import put

log = logging.getLogger("tartlet.operator")

Look = Callable[[Context], Awaitable[None]]
"""Sees to something beside the objects; raises ApiError or TartletError when somebody doesn't answer."""

SWEEP_S: Final = 10.0
"""When, after the start, the operator sees to what was deleted while none ran."""
_BACKLOG: Final = 200
_ROOM_S: Final = 60.0
"""A resync waits so long for the workers of a kind; then the keys alone are queued, which take no memory."""


async def sweep_when_settled(ctx: Context, looks: Sequence[Look], after_s: float = SWEEP_S) -> None:
    """Run `looks` once when every object has been seen; try every `after_s` until nothing fails."""
    while True:
        await asyncio.sleep(after_s)
        if ctx.queue.idle and len(ctx.view.catalogue) == len(ctx.namespaces):
            try:
                for look in looks:
                    await look(ctx)
            except (ApiError, TartletError) as e:
                log.warning("sweep: %s", e)
            else:
                return


class Resync:
    """Queues every object every `resync_s`, in case an event was lost."""

    def __init__(self, ctx: Context, looks: Sequence[Look]) -> None:
        """`looks`: what is seen to before the objects, such as programs that no run wants."""
        self._ctx = ctx
        self._looks = looks

    async def run(self) -> None:
        """Resync until cancelled."""
        while True:
            await asyncio.sleep(self._ctx.settings.resync_s)
            await self.once()

    async def once(self) -> None:
        """Queue every object that exists, and every object that was seen; errors wait for the next resync."""
        ctx = self._ctx
        for look in self._looks:
            try:
                await look(ctx)
            except (ApiError, TartletError) as e:
                log.warning("resync: %s", e)
        unseen = set(ctx.store.keys())
        for resource in RESOURCES:
            until_s = asyncio.get_running_loop().time() + _ROOM_S
            for namespace in ctx.namespaces:
                try:
                    await self._look_at(resource.kind, namespace, unseen, until_s)
                except ApiError as e:
                    log.warning("resync: %s in %s: %s", resource.plural, namespace, e)
        for key in unseen:
            ctx.queue.add(key)

    async def _look_at(self, kind: str, namespace: str, unseen: set[Key], until_s: float) -> None:
        """Queue a namespace's objects of a kind: with bodies while there is room until `until_s`, then keys alone."""
        queue, now = self._ctx.queue, asyncio.get_running_loop().time
        async for body in self._ctx.api.pages(kind, namespace):
            key = Key(kind, namespace, body["metadata"]["name"])
            unseen.discard(key)
            roomy = await queue.room(kind, _BACKLOG, until_s - now())
            if roomy:
                put(queue, key, body)
            else:
                queue.add(key)
