"""Handles one object at a time: fetches its newest body, runs its kind's reconcile, and retries failures."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from tartlet_common.errors.registry import TartletError
from tartlet_operator.api import EnginePool, Inferlet, InferletRun
from tartlet_operator.api.common import ApiModel
from tartlet_operator.api.conditions import Want, merged
from tartlet_operator.api.engine_pool import EnginePoolStatus
from tartlet_operator.api.events import ObjectEvent
from tartlet_operator.api.inferlet import InferletStatus
from tartlet_operator.api.inferlet_run import InferletRunStatus
from tartlet_operator.api.meta import Key, Meta
from tartlet_operator.api.reasons import EventReason, Reason, explained
from tartlet_operator.cluster.kube import ApiError, version
from tartlet_operator.machinery.context import Context
from tartlet_operator.machinery.work_queue import LATER

log = logging.getLogger("tartlet.operator")

_BACKOFF_S: Final = 0.5
_BACKOFF_MAX_S: Final = 30.0
_PROBE_S: Final = 30.0
"""How often one of the objects that were given up is tried. If it succeeds, all of them are tried."""

_AWAY: Final = (
    "control doesn't answer, and nothing is stored without it: see whether control's pod runs, its log, and the "
    "operator's"
)

_NO_RIGHTS: Final = (401, 403)
"""Refusals that may pass: an API server that starts knows nobody, and a role that was taken may be given back."""


class Kind(NamedTuple):
    """How one kind of objects is brought about.

    Args:
        reconcile: brings an object about, from its newest body; returns when to look at it again, s.
        gone: sees to what an object that was deleted has left, and forgets it (`Context.forget`).
    """

    reconcile: Callable[[Context, Key, Mapping[str, Any]], Awaitable[float | None]]
    gone: Callable[[Context, Key], Awaitable[None]]


def retry_s(failures: int, max_retries: int) -> float | None:
    """Return the pause after a number of failures in a row, s; None: wait for the next resync.

    Example:
        >>> [retry_s(n, 5) for n in (1, 2, 5, 6)]
        [0.5, 1.0, 8.0, None]
    """
    if failures > max_retries:
        return None
    return float(min(_BACKOFF_S * 2 ** (failures - 1), _BACKOFF_MAX_S))


class Handler:
    """Handles the objects that the work queue's workers take."""

    def __init__(self, ctx: Context, kinds: Mapping[str, Kind]) -> None:
        self._ctx = ctx
        self._kinds = kinds
        self._failures: dict[Key, int] = {}

    async def handle(self, key: Key, body: Mapping[str, Any] | None) -> float | None:
        """Bring one object about; return when to look at it again, s."""
        ctx = self._ctx
        started = ctx.clock.now()
        try:
            body = await self._newest(key, body)
            if body is None:
                await self._kinds[key.kind].gone(ctx, key)
                again_s = None
            else:
                again_s = await self._kinds[key.kind].reconcile(ctx, key, body)
            if again_s != LATER:
                self._succeeded(key)
        except ValidationError as e:  # a CRD of an older release let the spec through
            again_s = await self._failed(key, body, "InvalidSpec", str(e), permanent=True)
        except ApiError as e:
            again_s = await self._failed(
                key, body, e.reason or "ApiError", e.message, permanent=not (e.retryable or e.status in _NO_RIGHTS)
            )
        except TartletError as e:
            away = ctx.view.silent and e.retryable
            again_s = await self._failed(key, body, e.name, explained(e), away=away)
        except Exception as e:
            log.exception("%s", key)
            again_s = await self._failed(key, body, "InternalError", repr(e))
        ctx.metrics.reconciled(key.kind, ctx.clock.now() - started)
        return again_s

    async def _newest(self, key: Key, body: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Return the body, or the API server's if ours is missing or older than our own last write."""
        if body is not None and not self._ctx.own_writes.newer_than(key, version(body)):
            return body
        return await self._ctx.api.get(key.kind, key.namespace, key.name)

    async def _failed(
        self,
        key: Key,
        body: Mapping[str, Any] | None,
        reason: str,
        message: str,
        *,
        permanent: bool = False,
        away: bool = False,
    ) -> float | None:
        """Retry a few times, then say so in a condition and wait for the next resync or change.

        Args:
            key: the object.
            body: its body, if it could be read.
            reason: name of the error.
            message: its text.
            permanent: whether another attempt would fail too.
            away: whether control is away, which the condition tells at once.
        """
        ctx = self._ctx
        failures = self._failures.get(key, 0) + 1
        self._failures[key] = failures
        ctx.metrics.failed(key.kind, reason)
        again_s = None if permanent else retry_s(failures, ctx.settings.max_retries)
        log.log(logging.INFO if again_s else logging.WARNING, "%s: %s: %s", key, reason, message)
        if (away or again_s is None) and body is not None:
            try:
                await self._report_failure(key, body, _AWAY if away else f"{reason}: {message}", away=away)
            except (ApiError, ValidationError) as e:
                log.warning("%s: its condition can't be written: %s", key, e)
        if again_s is None:
            self._give_up(key, permanent=permanent)
        return again_s

    def _give_up(self, key: Key, *, permanent: bool) -> None:
        """Schedule a try of the object that was given up the longest ago; `key` becomes the last."""
        given_up = self._ctx.given_up
        given_up.pop(key, None)
        if not permanent:
            given_up[key] = None
        for first in list(given_up)[:1]:
            self._ctx.queue.add_after(first, _PROBE_S)

    def _succeeded(self, key: Key) -> None:
        self._failures.pop(key, None)
        if key in self._ctx.given_up:
            del self._ctx.given_up[key]
            self._ctx.try_again()

    async def _report_failure(self, key: Key, body: Mapping[str, Any], message: str, *, away: bool) -> None:
        meta = Meta.of(body)
        self._ctx.store.mark_unknown(key)
        reason = Reason.CONTROL_UNREACHABLE if away else Reason.RECONCILE_FAILED
        old, new = failed_status(key.kind, body, meta.generation, reason, message, self._ctx.now)
        warnings = [] if away else [ObjectEvent(EventReason.RECONCILE_FAILED, message, warning=True)]
        await self._ctx.write_status(key, meta, old, new, warnings)


def failed_status(
    kind: str, body: Mapping[str, Any], generation: int, reason: str, message: str, now: str
) -> tuple[ApiModel, ApiModel]:
    """Return an object's live status, and the status that says why the operator gave up for now."""
    live = body.get("status") or {}
    want = Want("Succeeded" if kind == InferletRun.__name__ else "Ready", "Unknown", reason, message)
    old: EnginePoolStatus | InferletStatus | InferletRunStatus
    if kind == EnginePool.__name__:
        old = EnginePoolStatus.model_validate(live)
    elif kind == Inferlet.__name__:
        old = InferletStatus.model_validate(live)
    else:
        old = InferletRunStatus.model_validate(live)
        if old.phase in ("Succeeded", "Failed"):
            return old, old
    others = [c for c in old.conditions if c.type != want.type]
    conditions = [*merged(old.conditions, [want], generation=generation, now=now), *others]
    return old, old.model_copy(update={"conditions": conditions})
