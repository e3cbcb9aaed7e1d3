"""Finds programs that no InferletRun wants any more, by their idempotency keys, and ends them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from tartlet import ProgramInfo
from tartlet_common.errors.registry import TartletError, Unavailable
from tartlet_operator.api.inferlet_run import InferletRunStatus
from tartlet_operator.api.meta import Meta
from tartlet_operator.cluster.kube import ApiError
from tartlet_operator.machinery.context import Context
from tartlet_operator.runs.decisions import launched_by

log = logging.getLogger("tartlet.operator")

_LIST_TIMEOUT_S: Final = 10.0


class Orphan(NamedTuple):
    """A program that no run wants."""

    program_id: str
    reason: str


def find(programs: Iterable[ProgramInfo], runs: Mapping[str, InferletRunStatus]) -> list[Orphan]:
    """Return the programs that an operator launched and whose run is gone, has ended, or is at a later attempt.

    Args:
        programs: listed before the runs, so every run that launched one of them is among the runs.
        runs: each run's status, by UID.
    """
    found = []
    for program in programs:
        launch = launched_by(program.idempotency_key)
        if launch is None:
            continue
        uid, attempt = launch
        run = runs.get(uid)
        if run is None:
            found.append(Orphan(program.program_id, "its InferletRun was deleted"))
        elif run.phase in ("Succeeded", "Failed"):
            found.append(Orphan(program.program_id, "its InferletRun has ended"))
        elif attempt < run.attempts:
            found.append(Orphan(program.program_id, f"its InferletRun is at attempt {run.attempts}"))
    return found


async def end(ctx: Context, namespaces: Iterable[str] | None = None) -> None:
    """End programs that no run wants, in all namespaces or in the given ones.

    Runs are read from the API server after the programs, because the operator may not have seen all of them yet. If
    every program is followed, as nearly always, runs aren't read.

    Raises:
        ApiError, TartletError: the API server or a runtime didn't answer.
    """
    failed: ApiError | TartletError | None = None
    for namespace in ctx.namespaces if namespaces is None else namespaces:
        try:
            await _end(ctx, namespace)
        except (ApiError, TartletError) as e:  # go on with the other namespaces
            failed = e
    if failed is not None:
        raise failed


async def _end(ctx: Context, namespace: str) -> None:
    listed = await _programs(ctx, namespace)
    followed = ctx.followers.programs
    unknown = [p for p in listed if launched_by(p.idempotency_key) and p.program_id not in followed]
    if not unknown:
        return
    runs = {}
    async for body in ctx.api.pages("InferletRun", namespace):
        runs[Meta.of(body).uid] = _status(body)
    for program_id, reason in find(unknown, runs):
        log.info("program %s in %s: %s", program_id, namespace, reason)
        await ctx.followers.end(program_id, reason)


def _status(body: Mapping[str, Any]) -> InferletRunStatus:
    """Return a run's status; one that can't be read becomes an empty status, which keeps all programs."""
    try:
        return InferletRunStatus.model_validate(body.get("status") or {})
    except ValidationError:
        return InferletRunStatus()


async def _programs(ctx: Context, namespace: str) -> Sequence[ProgramInfo]:
    try:
        async with asyncio.timeout(_LIST_TIMEOUT_S):
            return await ctx.client.list(tenant=namespace)
    except TimeoutError as e:
        raise Unavailable(what="the runtime", detail=f"it lists no programs in {_LIST_TIMEOUT_S:g} s") from e
