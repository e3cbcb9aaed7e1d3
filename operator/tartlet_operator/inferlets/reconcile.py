"""Brings an Inferlet about: fetches its source, has a runtime validate it, and puts it into control's catalogue."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tartlet import Language, Source
from tartlet_common.errors.registry import TartletError, Unavailable
from tartlet_operator.api.conditions import holds
from tartlet_operator.api.events import ObjectEvent
from tartlet_operator.api.inferlet import Inferlet, InferletSpec, InferletStatus
from tartlet_operator.api.meta import Key, Meta
from tartlet_operator.api.reasons import EventReason, Reason
from tartlet_operator.control.catalogue import entry, fingerprint
from tartlet_operator.control.launch_pool import launch_pool
from tartlet_operator.inferlets.status import Verdict, events, model_of, status
from tartlet_operator.machinery.context import VALIDATE_TIMEOUT_S, Context
from tartlet_operator.machinery.sources import SourceProblem, StillFetching
from tartlet_operator.machinery.store import InferletSeen, PoolSeen
from tartlet_operator.machinery.work_queue import LATER
from tartlet_protos import control_pb2

_PROBLEM_RETRY_S: Final = 30.0
_REMEMBERED: Final = 4096
_NOT_THE_SOURCE: Final = 400
"""Numbers of errors from here on are the system's: another attempt may succeed, whatever the source."""
_LANGUAGES: Final = {"Python": Language.PYTHON, "Wasm": Language.WASM}


async def reconcile(ctx: Context, key: Key, body: Mapping[str, Any]) -> float | None:
    """Validate the source and put it into the catalogue unless it is there, then write the status.

    Raises:
        ApiError: the API server refused something or didn't answer.
        Unavailable: control or the runtime didn't.
    """
    meta, inferlet = Meta.of(body), Inferlet.model_validate(body)
    if meta.deleting:
        return None
    old = inferlet.status or InferletStatus()
    pools = ctx.store.pools_in(key.namespace)
    print_, again_s = "", None
    _expect(ctx, key, inferlet.spec)
    try:
        wanted = await _entry(ctx, key, inferlet.spec, pools)
        print_ = fingerprint(wanted)
        await _catalogued(ctx, key, meta, wanted, print_, old)
        verdict = Verdict("True", Reason.CATALOGUED, digest=wanted.source.digest)
    except StillFetching as e:
        e.coming.add_done_callback(lambda _: ctx.queue.add(key))
        return LATER
    except SourceProblem as e:
        verdict = Verdict("False", e.reason, e.message, _digest(ctx, key, old))
        again_s = _PROBLEM_RETRY_S if e.retry else None
    except TartletError as e:
        if e.retryable or e.number >= _NOT_THE_SOURCE:
            raise
        verdict = Verdict("False", e.name, e.explained, _digest(ctx, key, old))
    if not verdict.digest:  # an entry of this name is of an earlier Inferlet, which was deleted
        await _forget_entry(ctx, key)
    new = status(inferlet.spec, old, verdict, pools, generation=meta.generation, now=ctx.now, shared=ctx.view.shared)
    await ctx.write_status(key, meta, old, new, events(old, new))
    _remember(ctx, key, inferlet.spec, new, print_ if verdict.ready == "True" else "")
    # 0.0: a pool changed meanwhile, and didn't find this Inferlet in the store
    return again_s if ctx.store.pools_in(key.namespace) == pools else 0.0


async def gone(ctx: Context, key: Key) -> None:
    """Queue the runs of a deleted Inferlet, and remove its entry from the catalogue.

    Raises:
        Unavailable: control didn't answer; the next resync finds the entry.
    """
    ctx.forget(key)
    for run in ctx.store.runs_of(key):
        ctx.queue.add(run)
    await _forget_entry(ctx, key)


async def _forget_entry(ctx: Context, key: Key) -> None:
    if key.name in ctx.view.catalogue.get(key.namespace, {}):
        await ctx.control.delete(key.namespace, key.name)
        ctx.view.catalogue[key.namespace].pop(key.name, None)


async def _entry(ctx: Context, key: Key, spec: InferletSpec, pools: Sequence[PoolSeen]) -> control_pb2.CatalogueEntry:
    model = model_of(spec, pools) or ""
    pool = launch_pool(key.namespace, spec.pool, spec.model, [p.model for p in pools])
    if spec.source.url is not None:  # an entry that control holds needn't be fetched again
        digest = spec.source.url.digest.removeprefix("sha256:")
        held = entry(spec, key.namespace, key.name, b"", model, pool, digest)
        if ctx.view.catalogue.get(key.namespace, {}).get(key.name) == fingerprint(held):
            return held
    data = await ctx.fetcher.fetch(spec.source, key.namespace)
    return entry(spec, key.namespace, key.name, data, model, pool)


async def _catalogued(
    ctx: Context, key: Key, meta: Meta, wanted: control_pb2.CatalogueEntry, print_: str, old: InferletStatus
) -> None:
    """Validate the entry and put it, unless the catalogue has it; entries there were validated."""
    held = ctx.view.catalogue.get(key.namespace)
    if held is None:
        raise Unavailable(what="control's catalogue", detail="it was not listed yet")
    if held.get(key.name) == print_:
        return
    lost = holds(old.conditions, "Ready") and old.digest == f"sha256:{wanted.source.digest}" and key.name not in held
    if not lost:  # a lost entry was validated before
        await _validate(ctx, wanted)
    await ctx.control.put(wanted)
    ctx.view.catalogue[key.namespace][key.name] = print_  # the catalogue may have been listed anew meanwhile
    if lost:
        ctx.recorder.post(key, meta.uid, ObjectEvent(EventReason.CATALOGUE_REBUILT, "control had lost it"))


async def _validate(ctx: Context, wanted: control_pb2.CatalogueEntry) -> None:
    digest = f"{wanted.source.language} {wanted.source.digest}"
    if digest in ctx.valid:
        ctx.valid.move_to_end(digest)
        return
    started = ctx.clock.now()
    language = Language.PYTHON if wanted.source.filename.endswith(".py") else Language.WASM
    try:
        async with asyncio.timeout(VALIDATE_TIMEOUT_S):
            await ctx.client.validate(Source(wanted.source.data, language, wanted.source.filename))
    except TimeoutError as e:
        raise Unavailable(what="the runtime", detail=f"no answer in {VALIDATE_TIMEOUT_S:g} s") from e
    finally:
        ctx.metrics.validated(ctx.clock.now() - started)
    ctx.valid[digest] = None
    while len(ctx.valid) > _REMEMBERED:
        ctx.valid.popitem(last=False)


def _digest(ctx: Context, key: Key, old: InferletStatus) -> str:
    """Return the digest of the last valid version, which the catalogue keeps until control loses it."""
    held = ctx.view.catalogue.get(key.namespace)
    return old.digest.removeprefix("sha256:") if held is None or key.name in held else ""


def _config_map(spec: InferletSpec) -> str:
    """Return the name of the ConfigMap that holds the source, or ""."""
    return spec.source.config_map.name if spec.source.config_map is not None else ""


def _expect(ctx: Context, key: Key, spec: InferletSpec) -> None:
    """Remember an Inferlet before its source is fetched, so that a change of its ConfigMap finds it."""
    config_map = _config_map(spec)
    seen = ctx.store.inferlets.get(key) or InferletSeen("", spec.pool, spec.model, "", ready=False, runnable=False)
    if config_map and config_map != seen.config_map:
        ctx.store.inferlets[key] = seen._replace(config_map=config_map)


def _remember(ctx: Context, key: Key, spec: InferletSpec, new: InferletStatus, print_: str) -> None:
    seen = InferletSeen(
        fingerprint=print_,
        pool=spec.pool,
        model=spec.model,
        config_map=_config_map(spec),
        ready=holds(new.conditions, "Ready"),
        runnable=holds(new.conditions, "Runnable"),
        generation=new.observed_generation,
    )
    before = ctx.store.inferlets.get(key)
    ctx.store.inferlets[key] = seen
    if before is None or before.standing != seen.standing:
        for run in ctx.store.runs_of(key):
            ctx.queue.add(run)
