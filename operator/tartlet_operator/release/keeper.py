"""Makes the pools of the release's values, and lets the release be uninstalled."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Mapping
from typing import Any, Final

from tartlet_operator.api.engine_pool import EnginePool
from tartlet_operator.api.events import ObjectEvent
from tartlet_operator.api.meta import DRAIN_FINALIZER, Key, Meta
from tartlet_operator.api.reasons import EventReason
from tartlet_operator.cluster.kube import ApiError
from tartlet_operator.machinery.context import Context
from tartlet_operator.release.decisions import POOLS_FILE, REFUSED, Change, Create, Refuse, Remove, Step, is_of, plan

log = logging.getLogger("tartlet.operator")

_POOL: Final = EnginePool.__name__
_WATCHED_S: Final = 30.0
"""How often the release is looked at, beside the events that tell of its changes."""
_UNWATCHED_S: Final = 5.0
"""How often the release is looked at where its namespace isn't watched."""
_LEAVING_S: Final = 0.5
_FAILED_S: Final = 2.0


async def keep(ctx: Context) -> None:
    """Look at the release's ConfigMap whenever it changes, until cancelled."""
    guard = ctx.guard
    if not guard.key.name:
        return
    watched = guard.key.namespace in ctx.namespaces
    while True:
        guard.changed.clear()
        try:
            again_s = await look(ctx, makes=watched)
        except ApiError as e:
            log.warning("%s: %s", guard.key, e)
            again_s = _FAILED_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(again_s or (_WATCHED_S if watched else _UNWATCHED_S)):
                await guard.changed.wait()


async def look(ctx: Context, *, makes: bool) -> float:
    """Bring the pools of the values about, or end what keeps the release from being uninstalled.

    Args:
        ctx: the operator's parts.
        makes: whether the release's namespace is watched; pools in others are nobody's.

    Returns:
        When to look again, s; 0: when something changes.

    Raises:
        ApiError: the API server didn't answer.
    """
    release = await ctx.guard.body()
    if release is None:
        return 0.0
    if Meta.of(release).deleting:
        return await _leave(ctx, release)
    if makes:
        await _make(ctx, release)
    if DRAIN_FINALIZER in Meta.of(release).finalizers:
        await _let_go_if_idle(ctx, release)
    return 0.0


async def _make(ctx: Context, release: Mapping[str, Any]) -> None:
    """Make, change and delete pools so that they are those of the values; note what was refused."""
    meta = release["metadata"]
    live = await ctx.api.list(_POOL, meta["namespace"], {})
    refused: dict[str, str] = {}
    for step in plan((release.get("data") or {}).get(POOLS_FILE, "[]"), live, meta):
        if message := await _taken(ctx, meta["namespace"], step):
            refused[step.name] = message
    before = json.loads((meta.get("annotations") or {}).get(REFUSED) or "{}")
    if refused == before:
        return
    for name, message in refused.items():
        log.warning("pool %s of the values: %s", name, message)
        told = ObjectEvent(EventReason.POOL_REFUSED, f"EnginePool {name}: {message}", warning=True)
        ctx.recorder.post(ctx.guard.key, meta["uid"], told)
    note = {REFUSED: json.dumps(refused) if refused else None}
    await ctx.api.merge(ctx.guard.key, {"metadata": {"uid": meta["uid"], "annotations": note}})


async def _taken(ctx: Context, namespace: str, step: Step) -> str:
    """Take a step; return why the API server refuses it for good, or "".

    Raises:
        ApiError: the step may succeed later.
    """
    key = Key(_POOL, namespace, step.name)
    try:
        match step:
            case Create(_, manifest):
                await ctx.api.create(manifest)
            case Change(_, uid, patch):
                await ctx.api.merge(key, {**patch, "metadata": {**patch.get("metadata", {}), "uid": uid}})
            case Remove(_, uid):
                await ctx.api.delete(key, uid)
            case Refuse(_, message):
                return message
    except ApiError as e:
        if e.status not in (400, 403, 422):
            raise
        return e.message
    log.info("%s: %s, as the release's values say", key, type(step).__name__.lower())
    return ""


async def _let_go_if_idle(ctx: Context, release: Mapping[str, Any]) -> None:
    """Remove the finalizer of the release when no pool has it any more."""
    async with ctx.guard.lock:
        if not [pool for pool in await _pools(ctx) if DRAIN_FINALIZER in Meta.of(pool).finalizers]:
            await ctx.guard.let_go(Meta.of(release).uid)


async def _leave(ctx: Context, release: Mapping[str, Any]) -> float:
    """Delete the pools of the values, which may drain while there is a control, and free all other pools."""
    left = False
    async with ctx.guard.lock:
        for body in await _pools(ctx):
            pool, ours = Meta.of(body), is_of(body, release["metadata"])
            key, drains = Key(_POOL, pool.namespace, pool.name), DRAIN_FINALIZER in pool.finalizers
            if (ours and not pool.deleting) or (pool.deleting and drains):
                await ctx.api.delete(key, pool.uid, foreground=drains)
            if drains:
                await ctx.api.set_finalizer(key, pool.uid, DRAIN_FINALIZER, there=False)
            left = left or ours
        if left:
            return _LEAVING_S
        log.info("the release is being uninstalled: no pool needs this operator any more")
        await ctx.guard.let_go(Meta.of(release).uid)
        return 0.0


async def _pools(ctx: Context) -> list[dict[str, Any]]:
    return [body for namespace in ctx.namespaces async for body in ctx.api.pages(_POOL, namespace)]
