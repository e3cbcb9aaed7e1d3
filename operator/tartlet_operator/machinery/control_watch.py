"""Listens to control, and queues the objects that depend on what control says."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Final

from tartlet_common.errors.registry import TartletError
from tartlet_operator.control.orders import own_of
from tartlet_operator.machinery.context import Context, Work
from tartlet_protos import control_pb2

log = logging.getLogger("tartlet.operator")

UNREACHABLE_S: Final = 3.0
"""Control may be gone this long before statuses say that nobody knows; one that hangs is noticed later (ADR 15)."""
_AGAIN_S: Final = 1.0
"""Control is asked again so long after it was lost."""


class ControlWatch:
    """Follows control's engines, which pools and runs depend on, and its incarnation, which the catalogue does."""

    def __init__(self, ctx: Context, compare: Callable[[Context], Awaitable[None]]) -> None:
        """`compare`: compares control's catalogue with the Inferlets, when control is another than before."""
        self._ctx = ctx
        self._compare = compare
        self._lost_s: float | None = None  # when control was lost

    async def run(self) -> None:
        """Listen until cancelled."""
        while True:
            try:
                async with self._replies() as replies:
                    async for reply in replies:
                        await self._handle(reply)
                continue
            except TartletError as e:
                self._note_silence(e)
            await asyncio.sleep(_AGAIN_S)

    async def once(self) -> None:
        """Ask control once, and queue what depends on changes."""
        try:
            async with self._replies() as replies:
                await self._handle(await anext(replies))
        except TartletError as e:
            self._note_silence(e)

    def _replies(self) -> contextlib.aclosing[AsyncGenerator[control_pb2.EnginesReply]]:
        return contextlib.aclosing(self._ctx.control.engines(self._ctx.settings.heartbeat_s))

    async def _handle(self, reply: control_pb2.EnginesReply) -> None:
        """Queue what depends on changes since the last reply.

        Raises:
            TartletError: control didn't answer when it was asked for its catalogue.
        """
        ctx, view = self._ctx, self._ctx.view
        if reply.incarnation != view.incarnation or len(view.catalogue) < len(ctx.namespaces):
            await self._compare(ctx)
            view.incarnation = reply.incarnation
        back = self._lost_s is not None
        if back:
            self._lost_s, view.silent = None, False
            ctx.try_again()
        self._share(reply)
        self._order(reply)
        self._note_refusals(reply)
        view.work = {e.id: Work(e.pool, e.waiting_s, e.device_s, e.programs_now) for e in reply.engines}
        view.told_s = ctx.clock.now()
        engines = {e.id: e.state for e in reply.engines}
        self._update(engines, {e.id: e.programs for e in reply.engines}, back=back)

    def _share(self, reply: control_pb2.EnginesReply) -> None:
        """Note the shared pools, and queue all Inferlets if others are ready than before."""
        pools: dict[str, set[str]] = {}
        for engine in reply.engines:
            if engine.shared_pool and engine.state == "ready":
                pools.setdefault(engine.model, set()).add(engine.shared_pool)
        shared = {model: tuple(sorted(names)) for model, names in pools.items()}
        if shared != self._ctx.view.shared:
            self._ctx.view.shared = shared
            for inferlet in list(self._ctx.store.inferlets):
                self._ctx.queue.add(inferlet)

    def _order(self, reply: control_pb2.EnginesReply) -> None:
        """Note what pools have for their own, and queue all pools if control has it otherwise than before."""
        orders = {each.pool: own_of(each) for each in reply.orders}
        if orders != self._ctx.view.orders:
            self._ctx.view.orders = orders
            for pool in list(self._ctx.store.pools):
                self._ctx.queue.add(pool)

    def _note_refusals(self, reply: control_pb2.EnginesReply) -> None:
        """Note the adapters that engines can't have, and queue all pools if these are others than before."""
        refused = {
            e.id: "; ".join(f"{name}: {why}" for name, why in sorted(e.refused.items()))
            for e in reply.engines
            if e.refused
        }
        if refused != self._ctx.view.adapters_refused:
            self._ctx.view.adapters_refused = refused
            for pool in list(self._ctx.store.pools):
                self._ctx.queue.add(pool)

    def _note_silence(self, error: TartletError) -> None:
        """Note that control doesn't answer; if that lasts, its engines' states become unknown."""
        now = self._ctx.clock.now()
        self._ctx.view.silent = True
        if self._lost_s is None:
            self._lost_s = now
        elif now - self._lost_s > UNREACHABLE_S and self._ctx.view.engines is not None:
            log.warning("%s", error)
            self._update(None, self._ctx.view.programs)  # the last known numbers

    def _update(self, engines: Mapping[str, str] | None, programs: Mapping[str, int], *, back: bool = False) -> None:
        """Queue what depends on a change; `back`: control was away, and statuses may say so."""
        view = self._ctx.view
        if not back and (engines, programs) == (view.engines, view.programs):
            return
        others = back or engines != view.engines
        view.engines, view.programs = engines, programs
        for pool in list(self._ctx.store.pools):
            self._ctx.queue.add(pool)
        for run in self._ctx.store.pending_runs() if others else ():  # they may wait for an engine
            self._ctx.queue.add(run)
