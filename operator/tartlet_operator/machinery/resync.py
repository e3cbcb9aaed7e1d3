"""What goes on beside the queue: control is heard, the catalogue compared, every object looked at again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping
from typing import Final

from tartlet_common.errors.registry import TartletError
from tartlet_operator.api import RESOURCES
from tartlet_operator.api.meta import Key
from tartlet_operator.cluster.kube import ApiError
from tartlet_operator.control.catalogue import sync
from tartlet_operator.machinery.context import Context
from tartlet_operator.machinery.watch import put
from tartlet_operator.runs import orphans
from tartlet_protos import control_pb2

log = logging.getLogger("tartlet.operator")

UNREACHABLE_S: Final = 3.0
"""Control may be gone this long before statuses say that nobody knows; one that hangs is noticed later (ADR 15)."""
_AGAIN_S: Final = 1.0
"""So long after control was lost it is asked again."""
SWEEP_S: Final = 10.0
"""So long after the start, what was deleted while nobody looked is seen to."""
_BACKLOG: Final = 200
_ROOM_S: Final = 60.0
"""So long a resync waits for the workers of a kind; then the keys alone are queued, which take no memory."""


class ControlWatch:
    """Hears from control: engines for the pools, its incarnation for the catalogue."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._lost_s: float | None = None  # since when nothing has been heard

    async def run(self) -> None:
        """Listen until cancelled."""
        while True:
            try:
                async with self._replies() as replies:
                    async for reply in replies:
                        await self._heard(reply)
                continue
            except TartletError as e:
                self._unheard(e)
            await asyncio.sleep(_AGAIN_S)

    async def once(self) -> None:
        """Ask once, and have looked at what changed."""
        try:
            async with self._replies() as replies:
                await self._heard(await anext(replies))
        except TartletError as e:
            self._unheard(e)

    def _replies(self) -> contextlib.aclosing[AsyncGenerator[control_pb2.EnginesReply]]:
        return contextlib.aclosing(self._ctx.control.engines(self._ctx.settings.heartbeat_s))

    async def _heard(self, reply: control_pb2.EnginesReply) -> None:
        """Have looked at what has changed since the last reply.

        Raises:
            TartletError: control said no more when it was asked for its catalogue.
        """
        ctx, view = self._ctx, self._ctx.view
        if reply.incarnation != view.incarnation or len(view.catalogue) < len(ctx.namespaces):
            await compare_catalogue(ctx)
            view.incarnation = reply.incarnation
        if self._lost_s is not None:
            self._lost_s = None
            ctx.try_again()
        self._tell({e.id: e.state for e in reply.engines}, {e.id: e.programs for e in reply.engines})

    def _unheard(self, error: TartletError) -> None:
        """Control is not there; if that goes on, nobody knows how its engines are."""
        now = self._ctx.clock.now()
        if self._lost_s is None:
            self._lost_s = now
        elif now - self._lost_s > UNREACHABLE_S and self._ctx.view.engines is not None:
            log.warning("%s", error)
            self._tell(None, self._ctx.view.programs)  # how many there were last

    def _tell(self, engines: Mapping[str, str] | None, programs: Mapping[str, int]) -> None:
        view = self._ctx.view
        if (engines, programs) == (view.engines, view.programs):
            return
        others = engines != view.engines
        view.engines, view.programs = engines, programs
        for pool in list(self._ctx.store.pools):
            self._ctx.queue.add(pool)
        for run in self._ctx.store.pending_runs() if others else ():  # that may wait for an engine
            self._ctx.queue.add(run)


async def compare_catalogue(ctx: Context) -> None:
    """List what control holds; have put what is missing, and removed what no Inferlet stands for.

    Raises:
        TartletError: control didn't answer.
    """
    for namespace in ctx.namespaces:
        held = await ctx.control.fingerprints(namespace)
        first = namespace not in ctx.view.catalogue
        ctx.view.catalogue[namespace] = held
        inferlets = [key for key in ctx.store.inferlets if key.namespace == namespace]
        wanted = {key.name: print_ for key in inferlets if (print_ := ctx.store.inferlets[key].fingerprint)}
        todo = sync(wanted, held)
        for name in todo.put:
            ctx.queue.add(Key("Inferlet", namespace, name))
        for key in inferlets:  # one in neither: its last valid version may be what control has lost
            if first or (key.name not in wanted and key.name not in held):
                ctx.queue.add(key)
        if not first:  # else perhaps no Inferlet has been seen yet: what has none is for the sweep
            for name in todo.delete:  # one not seen yet is looked at like any other, one that isn't there goes
                ctx.queue.add(Key("Inferlet", namespace, name))


async def sweep_when_settled(ctx: Context, after_s: float = SWEEP_S) -> None:
    """Sweep once, when all that is there has been seen; tried every `after_s`."""
    while True:
        await asyncio.sleep(after_s)
        if ctx.queue.idle and len(ctx.view.catalogue) == len(ctx.namespaces):
            try:
                await sweep(ctx)
            except (ApiError, TartletError) as e:
                log.warning("sweep: %s", e)
            else:
                return


async def sweep(ctx: Context) -> None:
    """See to what was deleted while nobody looked: entries of the catalogue, and programs that run.

    Raises:
        ApiError, TartletError: somebody didn't answer.
    """
    for namespace, held in ctx.view.catalogue.items():
        for name in held.keys() - {key.name for key in ctx.store.inferlets if key.namespace == namespace}:
            ctx.queue.add(Key("Inferlet", namespace, name))
    await orphans.end(ctx)


class Resync:
    """Looks at every object again, so that nothing depends on no event being lost."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    async def run(self) -> None:
        """Resync until cancelled."""
        while True:
            await asyncio.sleep(self._ctx.settings.resync_s)
            await self.once()

    async def once(self) -> None:
        """Queue every object that there is, and every one that was; who doesn't answer is for the next resync."""
        ctx = self._ctx
        for look in (compare_catalogue, orphans.end):
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
        """Queue a namespace's objects of a kind as there is room, until then."""
        queue, now = self._ctx.queue, asyncio.get_running_loop().time
        async for body in self._ctx.api.pages(kind, namespace):
            key = Key(kind, namespace, body["metadata"]["name"])
            unseen.discard(key)
            roomy = await queue.room(kind, _BACKLOG, until_s - now())
            if roomy:
                put(queue, key, body)
            else:
                queue.add(key)
