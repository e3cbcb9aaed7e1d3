"""Leadership: only the replica that holds the Lease works; a replica that loses the Lease ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tartlet_common.clock import Clock
from tartlet_common.errors.registry import Unavailable
from tartlet_operator.api.times import micro_stamp
from tartlet_operator.cluster.kube import Api, ApiError

log = logging.getLogger("tartlet.operator")

_RENEWED: Final = 2 / 5
_ANSWERED: Final = 1 / 5
_AGAIN: Final = 1 / 15
_HOLDER_GIVES_UP: Final = 2 / 3
_OTHERS_TAKE: Final = 4 / 5
_LOOK: Final = 1 / 5
"""Parts of the Lease's duration.

`_RENEWED`: pause between renewals. `_ANSWERED`: time for an answer. `_AGAIN`: pause after a failure. The holder gives
up after `_HOLDER_GIVES_UP` without a renewal, others take the Lease after `_OTHERS_TAKE`, so two never lead at once.
Others look every `_LOOK`, so a Lease that was given up is taken within its duration.
"""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was last seen in the Lease, and when by our own clock; other clocks aren't trusted."""

    holder: str
    renewed: str
    at: float


def observe(before: Seen | None, lease: Mapping[str, Any], now: float) -> Seen:
    """Return what the Lease says; `at` stays as it was unless somebody has renewed the Lease since."""
    spec = lease.get("spec") or {}
    holder, renewed = spec.get("holderIdentity") or "", spec.get("renewTime") or ""
    if before is not None and (before.holder, before.renewed) == (holder, renewed):
        return before
    return Seen(holder, renewed, now)


def may_take(seen: Seen, identity: str, duration_s: float, now: float) -> bool:
    """Whether the Lease is free, is ours, or went unrenewed for so long that its holder has given up."""
    return seen.holder in ("", identity) or now >= take_at_s(seen, duration_s)


def take_at_s(seen: Seen, duration_s: float) -> float:
    """Return when another replica's Lease may be taken, unless it is renewed before."""
    return seen.at + duration_s * _OTHERS_TAKE


class Leader:
    """Takes the Lease, keeps it and gives it back."""

    def __init__(self, api: Api, clock: Clock, *, namespace: str, name: str, identity: str, duration_s: float) -> None:
        self._api = api
        self._clock = clock
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._duration_s = duration_s
        self._lease: dict[str, Any] | None = None
        self._renewed_s = 0.0  # when the last request that renewed it was made
        self.leading = False

    @property
    def renew_s(self) -> float:
        """Pause between renewals, s; a renewal that failed is tried again sooner."""
        return self._duration_s * _RENEWED

    async def acquire(self) -> None:
        """Wait until this replica holds the Lease."""
        seen: Seen | None = None
        log.info("%s waits for Lease %s/%s", self._identity, self._namespace, self._name)
        while True:
            wait_s, self._renewed_s = self._duration_s * _LOOK, self._clock.now()
            try:
                lease = await self._api.get("Lease", self._namespace, self._name)
                if lease is None:
                    self._lease = await self._api.create(self._manifest(None))
                    break
                seen = observe(seen, lease, self._clock.now())
                if may_take(seen, self._identity, self._duration_s, self._clock.now()):
                    self._lease = await self._api.replace(self._manifest(lease))
                    break
                wait_s = min(wait_s, take_at_s(seen, self._duration_s) - self._clock.now())
            except ApiError as e:
                log.log(logging.DEBUG if e.status == 409 else logging.WARNING, "Lease: %s", e)
            await asyncio.sleep(max(wait_s, 0.0))
        self.leading = True
        log.info("%s leads", self._identity)

    async def keep(self) -> None:
        """Renew the Lease until cancelled.

        Raises:
            Unavailable: another replica took the Lease, or may soon, because no renewal succeeded for two thirds of its
                duration.
        """
        wait_s = self.renew_s
        while True:
            await asyncio.sleep(min(wait_s, self._left_s()))
            wait_s, asked_s = self._duration_s * _AGAIN, self._clock.now()
            try:
                async with asyncio.timeout(min(self._duration_s * _ANSWERED, self._left_s())):
                    self._lease = await self._api.replace(self._manifest(self._lease))
                wait_s, self._renewed_s = self.renew_s, asked_s
                continue
            except ApiError as e:
                if e.status == 409 and not await self._still_ours():
                    self._lose("another replica took it")
                log.warning("Lease can't be renewed: %s", e)
            except TimeoutError:
                log.warning("Lease can't be renewed: no answer")
            if self._left_s() == 0:
                self._lose("it couldn't be renewed")

    def _left_s(self) -> float:
        """Return how long this replica may go on leading without a renewal, s."""
        return max(self._renewed_s + self._duration_s * _HOLDER_GIVES_UP - self._clock.now(), 0.0)

    async def release(self) -> None:
        """Give the Lease back, so that another replica leads at once."""
        if not self.leading or self._lease is None:
            return
        self.leading = False
        manifest = self._manifest(self._lease)
        manifest["spec"]["holderIdentity"] = ""
        try:
            async with asyncio.timeout(self._duration_s * _ANSWERED):
                await self._api.replace(manifest)
        except (ApiError, TimeoutError) as e:
            log.warning("Lease can't be released: %s", str(e) or "no answer")

    async def _still_ours(self) -> bool:
        """Whether the Lease is still ours after a conflict: a renewal whose answer was lost loses nothing."""
        try:
            async with asyncio.timeout(self._left_s()):
                lease = await self._api.get("Lease", self._namespace, self._name)
        except (ApiError, TimeoutError):
            return True  # unknown: the clock decides
        if lease is None or (lease.get("spec") or {}).get("holderIdentity") != self._identity:
            return False
        self._lease = lease
        return True

    def _lose(self, detail: str) -> None:
        self.leading = False
        raise Unavailable(what=f"Lease {self._namespace}/{self._name}", detail=detail)

    def _manifest(self, lease: Mapping[str, Any] | None) -> dict[str, Any]:
        now = micro_stamp(self._clock.unix_ns() / 1e9)
        old = (lease or {}).get("spec") or {}
        ours = old.get("holderIdentity") == self._identity
        meta: dict[str, Any] = {"name": self._name, "namespace": self._namespace}
        if lease is not None:
            meta["resourceVersion"] = lease["metadata"]["resourceVersion"]
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": meta,
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": max(int(self._duration_s), 1),
                "acquireTime": old.get("acquireTime") if ours else now,
                "renewTime": now,
                "leaseTransitions": int(old.get("leaseTransitions") or 0) + (not ours),
            },
        }
