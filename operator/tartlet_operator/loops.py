"""What goes on beside the queue: control's state is polled, the catalogue compared, every object looked at again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Any, Final

from tartlet_common.errors import TartletError
from tartlet_operator import orphans
from tartlet_operator.api import RESOURCES
from tartlet_operator.catalogue import sync
from tartlet_operator.context import Context
from tartlet_operator.kube import ApiError
from tartlet_operator.meta import Key
from tartlet_operator.watch import slim

log = logging.getLogger("tartlet.operator")

UNREACHABLE_S: Final = 3.0
"""Control may be gone this long before statuses say that nobody knows."""
PROGRAMS_S: Final = 15.0
"""So often at most is a pool's status written only because other programs run."""
_IDLE_POLL_FACTOR: Final = 30
_SWEEP_S: Final = 10.0
"""So long after the start, what was deleted while nobody looked is seen to: all that is there has been seen."""
_BACKLOG: Final = 1000


def engines_of(state: Mapping[str, Any]) -> dict[str, str]:
    """State by engine id, from what control's State answers."""
    return {str(e["id"]): str(e["state"]) for e in state.get("engines", ())}


def programs_of(state: Mapping[str, Any]) -> dict[str, int]:
    """Programs by engine id."""
    return {str(e["id"]): int(e["programs"]) for e in state.get("engines", ())}


class ControlPoll:
    """Asks control for its state: engines for the pools, its incarnation for the catalogue."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._answered_s = ctx.clock.now()
        self._told: Mapping[str, int] = {}
        self._told_s = self._answered_s
        self._sweep_s = self._answered_s + _SWEEP_S

    async def run(self) -> None:
        """Poll until cancelled; seldom while there is no pool to tell about, unless something stirs."""
        ctx = self._ctx
        while True:
            ctx.stirred.clear()
            answered = await self.once()
            if ctx.store.pools or not answered:
                await asyncio.sleep(ctx.settings.poll_s)
                continue
            with contextlib.suppress(TimeoutError):
                sweep_in_s = max(self._sweep_s - ctx.clock.now(), ctx.settings.poll_s)
                async with asyncio.timeout(min(ctx.settings.poll_s * _IDLE_POLL_FACTOR, sweep_in_s)):
                    await ctx.stirred.wait()

    async def mind(self) -> None:
        """Have control asked soon when the connection to it is gone: it may have been started anew."""
        while True:
            await self._ctx.control.parted()
            self._ctx.stirred.set()
            await asyncio.sleep(self._ctx.settings.poll_s)

    async def once(self) -> bool:
        """Ask once, and have looked at what changed; whether control has answered."""
        view, now = self._ctx.view, self._ctx.clock.now()
        try:
            state = await self._ctx.control.state()
            incarnation = str(state.get("incarnation", ""))
            if incarnation != view.incarnation or len(view.catalogue) < len(self._ctx.namespaces):
                await compare_catalogue(self._ctx)
                view.incarnation = incarnation
        except TartletError as e:
            if now - self._answered_s > UNREACHABLE_S and view.engines is not None:
                log.warning("%s", e)
                self._tell(None, {})
            return False
        self._answered_s = self._ctx.clock.now()
        self._tell(engines_of(state), programs_of(state))
        if self._answered_s > self._sweep_s and self._ctx.queue.idle:
            self._sweep_s = float("inf")
            try:
                await sweep(self._ctx)
            except (ApiError, TartletError) as e:
                log.warning("sweep: %s", e)
                self._sweep_s = self._answered_s + _SWEEP_S
        return True

    def _tell(self, engines: Mapping[str, str] | None, programs: Mapping[str, int]) -> None:
        """Have pools looked at: at once when an engine's state has changed, now and then when only programs have."""
        view, now = self._ctx.view, self._ctx.clock.now()
        same, view.engines, view.programs = engines == view.engines, engines, programs
        if same and (programs == self._told or now - self._told_s < PROGRAMS_S):
            return
        self._told, self._told_s = programs, now
        for pool in list(self._ctx.store.pools):
            self._ctx.queue.add(pool)


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
        if first:  # perhaps no Inferlet has been seen yet: what has none is for the sweep
            for key in inferlets:
                ctx.queue.add(key)
        else:
            for name in todo.delete:  # one not seen yet is looked at like any other, one that isn't there goes
                ctx.queue.add(Key("Inferlet", namespace, name))


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
            try:
                await self.once()
            except (ApiError, TartletError) as e:
                log.warning("resync: %s", e)

    async def once(self) -> None:
        """Queue every object that there is, and every one that was.

        Raises:
            ApiError, TartletError: somebody didn't answer; the next resync sees to it.
        """
        ctx = self._ctx
        await compare_catalogue(ctx)
        await orphans.end(ctx)
        unseen = set(ctx.store.keys())
        for resource in RESOURCES:
            for namespace in ctx.namespaces:
                async for body in ctx.api.pages(resource.kind, namespace):
                    key = Key(resource.kind, namespace, body["metadata"]["name"])
                    unseen.discard(key)
                    ctx.queue.add(key, slim(body))
                    await ctx.queue.room(_BACKLOG)
        for key in unseen:
            ctx.queue.add(key)
