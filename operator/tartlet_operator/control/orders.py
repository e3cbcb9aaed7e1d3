"""What an EnginePool's spec leaves neither to control's settings nor to runtimes', as control speaks of it. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from tartlet_operator.api.engine_pool import SHORT_TOKENS, EnginePoolSpec, Scheduling
from tartlet_protos import control_pb2


class Own(NamedTuple):
    """What a pool has for its own, and control is told."""

    scheduling: Scheduling | None = None  # None: as control's settings say
    durability: str | None = None  # of launches that say nothing; None: as runtimes' settings say

    @classmethod
    def of(cls, spec: EnginePoolSpec) -> Own:
        """Return what the spec of a pool says."""
        return cls(spec.scheduling, spec.durability)


def order_of(pool: str, own: Own) -> control_pb2.PoolOrder:
    """Return what control is told of a pool, NAMESPACE/NAME."""
    told = control_pb2.PoolOrder(pool=pool, durability=own.durability or "")
    scheduling = own.scheduling
    if scheduling is not None:
        told.order = scheduling.order
        if scheduling.starved_at is not None:
            told.starved_at = scheduling.starved_at
        told.quanta_s.extend(ms / 1000 for ms in scheduling.quanta_milliseconds)
        told.placement = scheduling.placement or ""
        told.short_tokens = scheduling.short_tokens if scheduling.placement else 0
        told.preempt, told.every = scheduling.preempt or "", scheduling.every or 0
    return told


def own_of(order: control_pb2.PoolOrder) -> Own:
    """Return what control says of a pool in the form of a spec. A bound below a millisecond counts as one."""
    durability = order.durability or None
    if not order.order:
        return Own(None, durability)
    quanta = [max(1, round(s * 1000)) for s in order.quanta_s]
    told: dict[str, Any] = {"order": order.order, "quanta_milliseconds": quanta}
    told["starved_at"] = round(order.starved_at) if order.HasField("starved_at") else None
    told |= {"placement": order.placement or None, "short_tokens": order.short_tokens or SHORT_TOKENS}
    told |= {"preempt": order.preempt or None, "every": order.every or None}
    return Own(Scheduling.model_construct(**told), durability)
