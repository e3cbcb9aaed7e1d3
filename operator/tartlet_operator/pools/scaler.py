"""Scales the pools that ask for it: every second it decides for each, and writes `spec.replicas` where it differs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from tartlet_operator.api.autoscaling import Autoscaling
from tartlet_operator.api.events import ObjectEvent
from tartlet_operator.api.meta import Key
from tartlet_operator.api.reasons import EventReason
from tartlet_operator.cluster.kube import ApiError
from tartlet_operator.machinery.context import Context, Work
from tartlet_operator.machinery.store import PoolSeen
from tartlet_operator.pools.scaling import Load, Window, decide

log = logging.getLogger("tartlet.operator")

_EVERY_S: Final = 1.0
_QUIET_S: Final = 2.0
"""Control tells changes sooner than this, so engines of which it has told nothing for so long compute nothing."""


class Scaler:
    """Remembers what each scaled pool needed lately, and how busy its engines were."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._windows: dict[Key, Window] = {}
        self._last: dict[str, float] = {}
        self._before: tuple[float, Mapping[str, Work]] | None = None  # when control told it, and the engines' work

    async def run(self) -> None:
        """Scale until cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            await self.once()

    async def once(self) -> None:
        """Look at each pool once."""
        pools = {key: pool for key, pool in self._ctx.store.pools.items() if pool.scaling is not None}
        self._windows = {key: window for key, window in self._windows.items() if key in pools}
        view = self._ctx.view
        if not pools or view.engines is None or view.silent:
            self._before = None
            return
        busy = self._busy()
        for key, pool in pools.items():
            assert pool.scaling is not None
            await self._scale(key, pool, pool.scaling, busy)

    async def _scale(self, key: Key, pool: PoolSeen, scaling: Autoscaling, busy: Mapping[str, float]) -> None:
        ctx = self._ctx
        path = f"{key.namespace}/{key.name}"
        engines = {id_: work for id_, work in ctx.view.work.items() if work.pool == path}
        load = Load(
            waiting_s=sum(work.waiting_s for work in engines.values()),
            busy=sum(busy.get(id_, 0.0) for id_ in engines),
            programs=sum(work.programs for work in engines.values()),
            held=ctx.store.wanted(key, pool),
        )
        window = self._windows.setdefault(key, Window())
        wanted = decide(scaling, pool.replicas, load, window, ctx.clock.now())
        if wanted == pool.replicas:
            return
        try:
            await ctx.api.scale_pool(key, wanted)
        except ApiError as e:
            log.warning("%s: %s", key, e)
            return
        why = f"{load.waiting_s:.1f} s of device time wait, programs: {load.programs}"
        why += ", runs wait for an engine" if load.held else ""
        log.info("%s: %d -> %d engines: %s", key, pool.replicas, wanted, why)
        ctx.recorder.post(key, pool.uid, ObjectEvent(EventReason.POOL_SCALED, f"{pool.replicas} -> {wanted}: {why}"))
        if ctx.store.pools.get(key) is pool:
            ctx.store.pools[key] = replace(pool, replicas=wanted)

    def _busy(self) -> dict[str, float]:
        """Return the part of its time that each engine has computed since control told last."""
        told_s, work = self._ctx.view.told_s, self._ctx.view.work
        before_s, before = self._before or (told_s, work)
        if told_s - before_s >= _EVERY_S / 2:  # else what was told last stands
            self._last = {
                id_: max(0.0, each.device_s - before[id_].device_s) / (told_s - before_s)
                for id_, each in work.items()
                if id_ in before
            }
            self._before = (told_s, work)
        elif self._before is None:
            self._before, self._last = (told_s, work), {}
        elif self._ctx.clock.now() - told_s >= _QUIET_S:
            self._last = {}
        return self._last
