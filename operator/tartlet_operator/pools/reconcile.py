"""Brings an EnginePool about: gather, decide, apply."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from tartlet_common.errors.registry import TartletError
from tartlet_operator.api.conditions import find, holds
from tartlet_operator.api.engine_pool import EnginePool, EnginePoolSpec, EnginePoolStatus
from tartlet_operator.api.meta import DRAIN_FINALIZER, MANAGER, POOL_LABEL, Key, Meta, pool_selector
from tartlet_operator.cluster.kube import ApiError
from tartlet_operator.control.orders import Own, order_of, own_of
from tartlet_operator.machinery.context import Context
from tartlet_operator.machinery.store import PoolSeen
from tartlet_operator.pools.manifests import adapter_list, deployment, disruption_budget
from tartlet_operator.pools.pod_facts import START_S, PodFacts
from tartlet_operator.pools.status import DRAIN_LOOK_S, DeploymentFacts, PoolFacts, events, own, status
from tartlet_operator.pools.subset import covers, leftover

log = logging.getLogger("tartlet.operator")

_UNTYPED: Final = "failed to create typed patch object"
_ORPHANING: Final = frozenset({"orphan", "foregroundDeletion"})
"""Finalizers of the garbage collector: somebody has chosen already what becomes of what the pool owns."""
_SAID_CHARS: Final = 1536
"""Most characters of each refusal, so that two of them and a remedy fit into a condition's message."""


async def reconcile(ctx: Context, key: Key, body: Mapping[str, Any]) -> float | None:
    """Apply the Deployment and what belongs to it where they differ, then write the status.

    What the API server refuses for good is said beside what there is: engines of an earlier spec go on, and go away.
    For a pool that was deleted nothing is made: what it owns goes with it, which may take its programs' time.

    Raises:
        ApiError: the API server didn't answer, or lets nobody look or write the status.
    """
    meta, pool = Meta.of(body), EnginePool.model_validate(body)
    if key not in ctx.store.pools:  # runs that were applied with it wait for it from now on
        _remember(ctx, key, _seen(pool, meta, pool.status or EnginePoolStatus()))
    applied = [await _left(ctx, key)] if meta.deleting else await _made(ctx, key, meta, pool.spec)
    made = applied[0]
    refusals = [each.refused for each in applied if each.refused is not None]
    for refusal in refusals:
        log.warning("%s: %s", key, refusal)
        ctx.metrics.failed(key.kind, refusal.reason)
    listed = await ctx.api.list("Pod", key.namespace, pool_selector(key.name))
    pods = [PodFacts.of(p, ctx.unix_s) for p in listed]
    old = pool.status or EnginePoolStatus()
    told = None if ctx.view.silent else ctx.view.engines_in(key.namespace)
    engines = ctx.store.engines[key] = own(ctx.store.engines.get(key, ()), old, pods, told)
    seen = _seen(pool, meta, old)
    facts = PoolFacts(
        name=key.name,
        generation=meta.generation,
        replicas=pool.spec.replicas,
        deployment=DeploymentFacts.of(made.live, current=made.refused is None),
        pods=pods,
        engines=told,
        programs=ctx.view.programs_in(key.namespace),
        adapters_refused=ctx.view.adapters_refused_in(key.namespace),
        own=engines,
        refused="; ".join(map(str, refusals)),
        deleting=meta.deleting,
        wanted=seen.empty and ctx.store.wanted(key, seen),
        scaled=pool.spec.autoscaling is not None,
        now=ctx.unix_s,
        rivals=_rivals(ctx, key, pool.spec.model.name),
    )
    await _guard(ctx, key, meta, facts)
    await _ordered(ctx, key, Own() if meta.deleting else Own.of(pool.spec))
    new = status(facts, old, ctx.now)
    await ctx.write_status(key, meta, old, new, events(old, new, same_pods=made.same_pods))
    _remember(ctx, key, replace(_seen(pool, meta, new), wanted=facts.wanted))
    if meta.deleting and facts.living:
        return DRAIN_LOOK_S
    return START_S if any(p.unstarted for p in facts.pods) else None


async def _ordered(ctx: Context, key: Key, wanted: Own) -> None:
    """Give the pool the spec's order of programs and durability, where control has others.

    What control doesn't take is tried again with the next word from control.
    """
    path = f"{key.namespace}/{key.name}"
    if ctx.view.engines is None or ctx.view.orders.get(path, Own()) == own_of(order_of(path, wanted)):
        return
    try:
        await ctx.control.set_order(path, wanted)
    except TartletError as e:
        log.warning("%s: %s", key, e)


async def _guard(ctx: Context, key: Key, meta: Meta, facts: PoolFacts) -> None:
    """Keep a pool that has programs visible after its deletion, until its pods have gone.

    The finalizer only bridges the moment until the operator asks for a deletion in the foreground. From then on the
    cluster's garbage collector keeps the pool, so that nothing depends on an operator any more (ADR 32).

    Raises:
        ApiError: the API server refused a change or didn't answer.
    """
    guarded = DRAIN_FINALIZER in meta.finalizers
    if meta.deleting:
        if guarded:
            if not _ORPHANING & set(meta.finalizers):
                await ctx.api.delete(key, meta.uid, foreground=True)
            await ctx.api.set_finalizer(key, meta.uid, DRAIN_FINALIZER, there=False)
    elif facts.engines is not None:
        busy = any(facts.programs.get(p.name) for p in facts.living)
        if busy == guarded:
            return
        async with ctx.guard.lock:  # an uninstall of the release must find every finalizer
            if not busy or await ctx.guard.hold():
                await ctx.api.set_finalizer(key, meta.uid, DRAIN_FINALIZER, there=busy)


def _rivals(ctx: Context, key: Key, model: str) -> str:
    """Return the namespace's other pools of a model; engines of other namespaces never stand in its way."""
    others = [p.name for p in ctx.store.pools_in(key.namespace) if p.model == model and p.name != key.name]
    return ", ".join(f"EnginePool {key.namespace}/{name}" for name in sorted(others)[:8])


async def remember_pools(ctx: Context) -> None:
    """Remember the pools by their statuses before any object is handled: the status of Inferlets depends on pools."""
    for namespace in ctx.namespaces:
        try:
            async for body in ctx.api.pages(EnginePool.__name__, namespace):
                with contextlib.suppress(
                    ValidationError
                ):  # a CRD of an older release let it through; the pool's own turn says so
                    pool, meta = EnginePool.model_validate(body), Meta.of(body)
                    seen = _seen(pool, meta, pool.status or EnginePoolStatus())
                    ctx.store.pools[Key(EnginePool.__name__, namespace, meta.name)] = seen
        except ApiError as e:  # the pools are looked at soon
            log.warning("pools in %s: %s", namespace, e)


def _seen(pool: EnginePool, meta: Meta, status: EnginePoolStatus) -> PoolSeen:
    """Remember whether programs can run on a pool: also during a rollout, but not while all its engines go away."""
    ready = status.ready_replicas > 0 and not meta.deleting
    settled, empty = holds(status.conditions, "Ready"), pool.spec.replicas == 0
    available = find(status.conditions, "Available")
    unknown = available is not None and available.status == "Unknown"
    return PoolSeen(
        meta.name,
        pool.spec.model.name,
        ready=ready,
        settled=settled,
        empty=empty,
        unknown=unknown,
        scaling=None if meta.deleting else pool.spec.autoscaling,
        replicas=pool.spec.replicas,
        uid=meta.uid,
    )


def _remember(ctx: Context, key: Key, seen: PoolSeen) -> None:
    """Remember a pool, and queue the Inferlets whose `Runnable` depends on it."""
    before = ctx.store.pools.get(key)
    ctx.store.pools[key] = seen
    if before is None or seen.empty != before.empty:  # runs may have waited for it before it was seen
        for pool in ctx.store.empty_pools():
            ctx.queue.add(pool)
    if before is not None and before.standing == seen.standing:
        return
    for inferlet in ctx.store.inferlets_of(key, seen):
        ctx.queue.add(inferlet)


class _Applied(NamedTuple):
    """A live object of a pool, empty if there is none, and why it isn't what the manifest says."""

    live: Mapping[str, Any]
    refused: ApiError | None = None
    same_pods: bool = False  # whether it was applied without a change to its pods' template


async def _made(ctx: Context, key: Key, meta: Meta, spec: EnginePoolSpec) -> list[_Applied]:
    """Apply the Deployment, and the ConfigMap and the PodDisruptionBudget that belong to it, as far as is allowed.

    Raises:
        ApiError: as `reconcile`.
    """
    adapters = adapter_list(spec, meta)
    listed = [await _applied(ctx, adapters, key.name)] if adapters is not None else []  # first: pods wait for it
    made = await _applied(ctx, deployment(spec, meta, ctx.defaults), key.name)
    if made.refused and made.live:
        made = await _scaled(ctx, key, made, spec.replicas)
    if not made.live:  # there are no pods to guard, and the name may be another's
        return [made, *listed]
    return [made, *listed, await _applied(ctx, disruption_budget(spec, meta), key.name)]


async def _left(ctx: Context, key: Key) -> _Applied:
    """Read the Deployment without a change.

    Raises:
        ApiError: it can't be read.
    """
    live = await ctx.api.get("Deployment", key.namespace, key.name)
    return _Applied(live if live is not None and is_ours(live["metadata"], key.name) else {})


async def _applied(ctx: Context, manifest: Mapping[str, Any], pool: str) -> _Applied:
    """Return a pool's live object, applied first if it isn't what the manifest says.

    Raises:
        ApiError: as `reconcile`.
    """
    meta, kind = manifest["metadata"], manifest["kind"]
    live = await ctx.api.get(kind, meta["namespace"], meta["name"])
    if live is not None and not is_ours(live["metadata"], pool):
        message = f"there is a {kind} {meta['name']} that is not this pool's: give the pool another metadata.name"
        return _Applied({}, ApiError(422, "NameTaken", message))
    if live is not None and covers(live, manifest) and not leftover(live, manifest, MANAGER):
        return _Applied(live)
    try:
        made = await asyncio.shield(ctx.api.apply(manifest))
        return _Applied(made, same_pods=_template(made) is not None and _template(made) == _template(live or {}))
    except ApiError as e:
        unknown_field = _UNTYPED in e.message  # the API server reports this as an error of its own
        if e.retryable and not unknown_field:
            raise
        message = f"{e.message[:_SAID_CHARS]}: correct it in the pool's spec, from which spec.template is made"
        return _Applied(live or {}, ApiError(422 if unknown_field else e.status, e.reason or "Invalid", message))


def _template(body: Mapping[str, Any]) -> Any:
    """Return the template of a Deployment's pods."""
    return (body.get("spec") or {}).get("template")


async def _scaled(ctx: Context, key: Key, made: _Applied, replicas: int) -> _Applied:
    """Give a Deployment the spec's number of replicas, where the API server refused the rest of it.

    Raises:
        ApiError: the API server didn't answer.
    """
    if made.live["spec"].get("replicas") == replicas:
        return made
    try:
        return made._replace(live=await asyncio.shield(ctx.api.scale("Deployment", key.namespace, key.name, replicas)))
    except ApiError as e:
        if e.retryable:
            raise
        return made  # refused like the rest, whose refusal is reported


def is_ours(meta: Mapping[str, Any], name: str) -> bool:
    """Whether an object was made for the pool of a name, or for an earlier pool of this name.

    Its maker tells; where there is none (pools can be deleted without what they own) its label does.
    """
    makers = {(owner["kind"], owner["name"]) for owner in meta.get("ownerReferences") or () if owner.get("controller")}
    if makers:
        return makers == {(EnginePool.__name__, name)}
    return bool((meta.get("labels") or {}).get(POOL_LABEL) == name)


async def gone(ctx: Context, key: Key) -> None:
    """Queue the namespace's Inferlets, which a deleted pool may have served."""
    known = key in ctx.store.pools
    ctx.forget(key)
    await _ordered(ctx, key, Own())
    ctx.guard.changed.set()  # the release's values may want a pool of this name
    if known:  # else a pod names a pool that never existed
        for inferlet in list(ctx.store.inferlets):
            if inferlet.namespace == key.namespace:
                ctx.queue.add(inferlet)
