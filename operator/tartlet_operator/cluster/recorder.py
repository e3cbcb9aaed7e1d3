"""Posts Kubernetes events in the background: a bounded number, and none again and again."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import OrderedDict
from dataclasses import replace
from typing import Final

from tartlet_common.clock import Clock
from tartlet_operator.api.common import API_VERSION
from tartlet_operator.api.events import ObjectEvent
from tartlet_operator.api.meta import MANAGER, Key
from tartlet_operator.api.printable import printable
from tartlet_operator.api.reasons import EventReason
from tartlet_operator.api.times import stamp
from tartlet_operator.cluster.kube import Api, ApiError

log = logging.getLogger("tartlet.operator")

_WAITING: Final = 1000
_REMEMBERED: Final = 4096
_QUIET_S: Final = 600.0
_OFTEN: Final = 10
"""Most posts of one event within `_QUIET_S`, even if the object keeps changing between two states."""
_MESSAGE_CHARS: Final = 1000
_STATES: Final = frozenset(
    {
        EventReason.POOL_READY,
        EventReason.POOL_DEGRADED,
        EventReason.ROLLOUT_STARTED,
        EventReason.INFERLET_READY,
        EventReason.INFERLET_REFUSED,
    }
)
"""Reasons that stand for an object's state. The same state after another one is news again."""
_CHANGES: Final = frozenset({EventReason.POOL_SCALED})
"""Reasons that stand for a change. Each change is news."""


class Recorder:
    """Posts events. When too many wait, new ones are dropped and counted."""

    def __init__(self, api: Api, clock: Clock, instance: str) -> None:
        self._api = api
        self._clock = clock
        self._instance = instance
        self._queue: asyncio.Queue[tuple[Key, str, ObjectEvent]] = asyncio.Queue(_WAITING)
        self._posted: OrderedDict[tuple[str, str, str], list[float]] = OrderedDict()  # times of late posts
        self._states: OrderedDict[str, EventReason] = OrderedDict()  # an object's last state, by UID
        self.dropped = 0

    def post(self, key: Key, uid: str, event: ObjectEvent) -> None:
        """Queue an event, unless the same one was posted within ten minutes and nothing has changed since."""
        event = replace(event, message=printable(event.message[:_MESSAGE_CHARS]))
        known = (uid, event.reason, event.message)
        now = self._clock.now()
        lately = [at_s for at_s in self._posted.get(known, ()) if now - at_s < _QUIET_S]
        state = event.reason in _STATES
        changed = event.reason in _CHANGES or (state and self._states.get(uid, event.reason) != event.reason)
        if lately and (not changed or len(lately) >= _OFTEN):
            return
        try:
            self._queue.put_nowait((key, uid, event))
        except asyncio.QueueFull:
            self.dropped += 1
            return
        self._posted[known] = [*lately, now]
        self._posted.move_to_end(known)
        if state:
            self._states[uid] = event.reason
            self._states.move_to_end(uid)
        while now - next(iter(self._posted.values()))[-1] >= _QUIET_S:
            self._posted.popitem(last=False)
        for memory in (self._posted, self._states):
            while len(memory) > _REMEMBERED:
                memory.popitem(last=False)

    async def run(self) -> None:
        """Post queued events until cancelled."""
        while True:
            key, uid, event = await self._queue.get()
            try:
                await self._api.create(self._manifest(key, uid, event))
            except ApiError as e:
                log.info("event %s of %s can't be posted: %s", event.reason, key, e)

    def _manifest(self, key: Key, uid: str, event: ObjectEvent) -> dict[str, object]:
        now = stamp(self._clock.unix_ns() / 1e9)
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"namespace": key.namespace, "name": f"{key.name[:200]}.{uuid.uuid4().hex[:16]}"},
            "involvedObject": {
                "apiVersion": "v1" if key.kind == "ConfigMap" else API_VERSION,
                "kind": key.kind,
                "namespace": key.namespace,
                "name": key.name,
                "uid": uid,
            },
            "reason": event.reason,
            "message": event.message,
            "type": "Warning" if event.warning else "Normal",
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "source": {"component": MANAGER},
            "reportingComponent": MANAGER,
            "reportingInstance": self._instance[:128],
        }
