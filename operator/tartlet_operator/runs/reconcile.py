"""Brings an InferletRun about: launches each attempt once, follows it, retries, ends and deletes it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from tartlet import Accepted, LaunchSpec, Limits
from tartlet_common.errors.registry import (
    NoEngine,
    ProgramKilled,
    TartletError,
    Unavailable,
    UnknownInferlet,
    UnknownModel,
    UnknownPool,
)
from tartlet_operator.api.conditions import find, holds
from tartlet_operator.api.events import ObjectEvent
from tartlet_operator.api.inferlet import Inferlet, InferletStatus
from tartlet_operator.api.inferlet_run import InferletRun, InferletRunStatus
from tartlet_operator.api.meta import Key, Meta
from tartlet_operator.api.reasons import EventReason, Reason, brief, explained
from tartlet_operator.control.launch_pool import kept_pool, launch_pool
from tartlet_operator.machinery.context import Context
from tartlet_operator.machinery.program_output import Outcome, Output
from tartlet_operator.machinery.store import PoolSeen, RunSeen
from tartlet_operator.runs import decisions as runs
from tartlet_operator.runs import orphans, status, withhold
from tartlet_operator.runs.decisions import Delete, Finish, Follow, InferletFacts, Launch, Rest, Retry, Wait

_LAUNCH_TIMEOUT_S: Final = 60.0
_FIRST_TIMEOUT_S: Final = 15.0
"""Time for the first answer to a launch.

Then the status says that the run waits, and the same attempt is sent again.
"""
_LATE_S: Final = 0.5
_FULL_S: Final = 30.0
"""How often a run beyond `max_runs` is looked at, beside the ends of other runs."""
_DELETED: Final = "its InferletRun was deleted"
_MADE_AGAIN: Final = "its InferletRun was deleted and made again"
_LATER: Final = "its InferletRun has another program"
_HAS_ENDED: Final = "its InferletRun has ended"
_HELD: Final = (Reason.INFERLET_NOT_RUNNABLE, "NoEngine", "UnknownModel", "UnknownPool")
"""Reasons of runs that wait for an engine."""
_WAITS: Final = (UnknownModel, UnknownPool, UnknownInferlet, NoEngine)
"""Launch errors that pass when an engine or a catalogue entry comes; the deadline bounds the wait."""


async def reconcile(ctx: Context, key: Key, body: Mapping[str, Any]) -> float | None:
    """Do the next thing about a run; return when to look again, s.

    Raises:
        ApiError: the API server refused something or didn't answer.
    """
    meta, run = Meta.of(body), InferletRun.model_validate(body)
    old = run.status or InferletRunStatus()
    await _end(ctx, ctx.followers.forget_another(key, meta.uid), _MADE_AGAIN)
    _saw(ctx, key, run, old)
    if meta.deleting:  # a finalizer keeps the object; its program is unwanted
        for program_id in {ctx.followers.forget(key), old.program_id if old.phase in runs.LAUNCHED else ""}:
            await _end(ctx, program_id, _DELETED)
        if old.phase not in ("Succeeded", "Failed"):
            outcome = Outcome(success=False, error=ProgramKilled(reason=_DELETED))
            await _finish(ctx, key, meta, run, old, Finish(outcome))
        return None
    inferlet, known = await _inferlet(ctx, key, run, old)
    ended = ctx.followers.outcome(key, old.program_id)
    action = runs.decide(
        run.spec,
        old,
        uid=meta.uid,
        now=ctx.unix_s,
        inferlet=replace(known, silent=ctx.view.silent),
        outcome=ended if old.output_kept else withhold.without_texts(ended),
        followed_s=ctx.followers.followed_s(key, old.program_id),
        ttl_s=ctx.settings.run_ttl_s,
    )
    match action:
        case Rest(seconds):
            await _end(ctx, ctx.followers.forget(key), _HAS_ENDED)
            return seconds
        case Delete():
            await ctx.api.delete(key, meta.uid)
            return None
        case Follow(program_id, seconds):
            return await _follow(ctx, key, meta, old, program_id, seconds)
        case Launch():
            return await _launch(ctx, key, meta, run, old, inferlet, action)
        case Wait(seconds):
            new = status.waiting(old, action, generation=meta.generation, now=ctx.unix_s)
            await _write(ctx, key, meta, old, new)
            return seconds
        case Retry(outcome, seconds):
            new = status.retrying(old, action, generation=meta.generation, now=ctx.unix_s)
            message = f"attempt {old.attempts}: {outcome.error.name}: {brief(outcome.error)}" if outcome.error else ""
            await _write(ctx, key, meta, old, new, EventReason.RUN_RETRIED, message)
            return seconds
        case Finish():
            return await _finish(ctx, key, meta, run, old, action)


async def gone(ctx: Context, key: Key) -> None:
    """End the program that a deleted run has left.

    Raises:
        ApiError, TartletError: the API server or a runtime didn't answer.
    """
    program_id = ctx.followers.forget(key)
    seen = ctx.store.runs.get(key)
    if program_id:
        await ctx.followers.end(program_id, _DELETED)
    elif seen is not None and seen.phase == "Pending":  # an unanswered launch may have reached the runtime
        await orphans.end(ctx, [key.namespace])
    ctx.forget(key)
    if seen is not None and seen.held:
        _look_at_empty_pools(ctx)


def _held(now: InferletRunStatus) -> bool:
    """Whether a run waits for an engine, as its status says."""
    running = find(now.conditions, "Running")
    return now.phase == "Pending" and running is not None and running.reason in _HELD


def _see(ctx: Context, key: Key, seen: RunSeen) -> None:
    """Remember a run, and queue pools without engines that it begins or ceases to wait for."""
    before = ctx.store.runs.get(key)
    ctx.store.saw_run(key, seen)
    if seen.held != (before is not None and before.held):
        _look_at_empty_pools(ctx)


def _look_at_empty_pools(ctx: Context) -> None:
    for pool in ctx.store.empty_pools():
        ctx.queue.add(pool)


async def _end(ctx: Context, program_id: str, reason: str) -> None:
    """End an unwanted program; "" is none."""
    if program_id:
        await ctx.followers.end(program_id, reason)


async def _inferlet(
    ctx: Context, key: Key, run: InferletRun, old: InferletRunStatus
) -> tuple[Inferlet | None, InferletFacts]:
    """Return the Inferlet of a run that is to be launched, and the facts about it."""
    if old.phase != "Pending":
        return None, InferletFacts(found=False)
    body = await ctx.api.get("Inferlet", key.namespace, run.spec.inferlet)
    if body is None:
        return None, InferletFacts(found=False)
    inferlet = Inferlet.model_validate(body)
    pools = ctx.store.pools_in(key.namespace)
    return inferlet, facts(inferlet, Meta.of(body).generation, run.spec.model, pools)


def facts(inferlet: Inferlet, generation: int, model: str = "", pools: Sequence[PoolSeen] = ()) -> InferletFacts:
    """Return the facts about an Inferlet, as its spec is now, for a run that may name another model.

    A program without a pool may run without engines, or on those of another namespace: it is held back only where the
    namespace has pools for it, none of which has a ready engine. `pools`: the namespace's; the status may be older.
    """
    status = inferlet.status or InferletStatus()
    if status.observed_generation < generation:
        return InferletFacts(found=True, message="not looked at yet since it was changed")
    ready, where = find(status.conditions, "Ready"), find(status.conditions, "Runnable")
    message = f"{ready.reason}: {ready.message}" if ready is not None else "not looked at yet"
    needs = inferlet.spec.pool or (where is not None and where.reason == Reason.POOL_NOT_READY)
    held = f"{where.reason}: {where.message}" if where is not None and where.status == "False" else ""
    if where is not None and where.reason == Reason.MODEL_NOT_NAMED and pools and not any(p.ready for p in pools):
        needs = True  # the pools came after the status was written
        held = f"{Reason.POOL_NOT_READY}: no engine is ready in {', '.join(sorted(p.name for p in pools)[:8])}"
    return InferletFacts(
        found=True,
        ready=holds(status.conditions, "Ready"),
        message=message,
        held=held if needs and not model else "",
    )


async def _launch(
    ctx: Context,
    key: Key,
    meta: Meta,
    run: InferletRun,
    old: InferletRunStatus,
    inferlet: Inferlet | None,
    action: Launch,
) -> float | None:
    started = ctx.unix_s  # the deadline counts from here, however long the answer takes

    async def waits(wait: Wait) -> float:
        new = status.waiting(old, wait, generation=meta.generation, now=started)
        await _write(ctx, key, meta, old, new)
        return wait.seconds

    if ctx.followers.full:
        ctx.followers.wait(key)
        limit = ctx.settings.max_runs
        message = f"the operator follows {limit} runs, as many as max_runs allows: it waits until one ends"
        return await waits(Wait(min(action.deadline_s, _FULL_S), Reason.TOO_MANY_RUNS, message))
    assert inferlet is not None, "decide() launches only what was found"
    keeps = withhold.keeps(run.spec, inferlet.spec)
    args = run.spec.args if run.spec.args is not None else inferlet.spec.args
    served = {pool.name: pool.model for pool in ctx.store.pools_in(key.namespace)}
    model, pool = run.spec.model or inferlet.spec.model, kept_pool(inferlet.spec.pool, run.spec.model, served)
    spec = LaunchSpec(
        inferlet=run.spec.inferlet,
        args=args,
        model=run.spec.model,
        pool=launch_pool(key.namespace, pool, model, served.values()),
        tenant=key.namespace,
        idempotency_key=action.key,
        limits=Limits(deadline_s=action.deadline_s),
    )
    try:
        patience_s = _LAUNCH_TIMEOUT_S if old.start_time else _FIRST_TIMEOUT_S
        accepted = await _answer(ctx, spec, min(patience_s, action.deadline_s + _LATE_S))
    except TartletError as e:
        if not e.retryable and not isinstance(e, _WAITS):
            refused = Outcome(success=False, error=e)
            finish = Finish(refused if keeps else withhold.without_texts(refused))
            return await _finish(ctx, key, meta, run, old, finish)
        left_s = action.deadline_s - (ctx.unix_s - started)
        if ctx.view.silent:
            return await waits(
                Wait(max(0.0, min(left_s, runs.RECHECK_S)), Reason.CONTROL_UNREACHABLE, runs.UNREACHABLE)
            )
        pause_s = runs.pause_s(started - runs.still_since(old, started))
        return await waits(Wait(max(0.0, min(left_s, pause_s)), e.name, explained(e)))
    # before the status is written: if the write fails, the program is known all the same
    await _end(ctx, ctx.followers.follow(key, accepted.program_id, meta.uid), _LATER)
    new = status.launched(old, action.attempt, accepted.program_id, generation=meta.generation, now=started)
    new = new.model_copy(update={"output_kept": keeps})
    await _write(ctx, key, meta, old, new, EventReason.RUN_LAUNCHED, f"attempt {action.attempt}: {accepted.program_id}")
    return action.deadline_s


async def _answer(ctx: Context, spec: LaunchSpec, timeout_s: float) -> Accepted:
    try:
        async with asyncio.timeout(timeout_s):
            return await ctx.client.launch(spec=spec)
    except TimeoutError as e:
        raise Unavailable(what="the runtime", detail="it does not answer a launch") from e


async def _follow(
    ctx: Context, key: Key, meta: Meta, old: InferletRunStatus, program_id: str, seconds: float
) -> float | None:
    await _end(ctx, ctx.followers.follow(key, program_id, meta.uid), _LATER)
    new = status.progressed(
        old,
        ctx.followers.output(key, program_id) if old.output_kept else None,
        ctx.followers.seen(key, program_id),
        silent=ctx.followers.silent(key, program_id),
        generation=meta.generation,
        now=ctx.unix_s,
    )
    if new != old:
        await _write(ctx, key, meta, old, new)
    return min(seconds, ctx.followers.silent_in_s(key, program_id) or seconds)


async def _finish(
    ctx: Context, key: Key, meta: Meta, run: InferletRun, old: InferletRunStatus, finish: Finish
) -> float | None:
    if finish.kill:
        await ctx.followers.end(old.program_id, "past the run's deadline")
        output = (ctx.followers.output(key, old.program_id) if old.output_kept else None) or Output()
        finish = replace(finish, outcome=replace(finish.outcome, output=output))
    new = status.finished(old, finish, generation=meta.generation, now=ctx.unix_s)
    if finish.outcome.success:
        await _write(ctx, key, meta, old, new, EventReason.RUN_SUCCEEDED, f"tokens sampled: {new.tokens.output}")
    else:
        await _write(ctx, key, meta, old, new, EventReason.RUN_FAILED, _failure(finish, new))
    left = ctx.followers.forget(key)
    if not finish.kill:
        await _end(ctx, left, _HAS_ENDED)
    _saw(ctx, key, run, new)
    then = runs.after_end(run.spec, new, ctx.unix_s, ctx.settings.run_ttl_s)
    return then.seconds if isinstance(then, Rest) else 0.0


def _saw(ctx: Context, key: Key, run: InferletRun, status: InferletRunStatus) -> None:
    """Remember a run and when it is to be deleted."""
    expires_s = runs.expires_s(run.spec, status, ctx.settings.run_ttl_s)
    _see(ctx, key, RunSeen(run.spec.inferlet, status.phase, expires_s, run.spec.model, _held(status)))


def _failure(finish: Finish, new: InferletRunStatus) -> str:
    """Return the text of the event: the error's name, and the exception of a program that raised one."""
    failed = find(new.conditions, "Failed")
    said = failed.message if failed is not None else ""
    return f"{finish.outcome.error.name}: {said}" if finish.outcome.error is not None else said


async def _write(
    ctx: Context,
    key: Key,
    meta: Meta,
    old: InferletRunStatus,
    new: InferletRunStatus,
    reason: EventReason | None = None,
    message: str = "",
) -> None:
    warning = reason in (EventReason.RUN_FAILED, EventReason.RUN_RETRIED)
    happened = [ObjectEvent(reason, message, warning=warning)] if reason is not None else []
    await ctx.write_status(key, meta, old, new, happened)
    _see(ctx, key, ctx.store.runs[key]._replace(phase=new.phase, held=_held(new)))
