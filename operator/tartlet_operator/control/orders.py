"""Orders of programs as an EnginePool's spec has them, and as control speaks of them. Pure."""

from __future__ import annotations

from typing import Any

from tartlet_operator.api.engine_pool import SHORT_TOKENS, Scheduling
from tartlet_protos import control_pb2


def order_of(pool: str, scheduling: Scheduling) -> control_pb2.PoolOrder:
    """Return what control is told of a pool, NAMESPACE/NAME."""
    return control_pb2.PoolOrder(
        pool=pool,
        order=scheduling.order,
        quanta_s=[ms / 1000 for ms in scheduling.quanta_milliseconds],
        starved_at=scheduling.starved_at,
        placement=scheduling.placement or "",
        short_tokens=scheduling.short_tokens if scheduling.placement else 0,
        preempt=scheduling.preempt or "",
        every=scheduling.every or 0,
    )


def scheduling_of(order: control_pb2.PoolOrder) -> Scheduling:
    """Return what control says of a pool in the form of a spec. A bound below a millisecond counts as one."""
    quanta = [max(1, round(s * 1000)) for s in order.quanta_s]
    told: dict[str, Any] = {"order": order.order, "quanta_milliseconds": quanta, "starved_at": round(order.starved_at)}
    told |= {"placement": order.placement or None, "short_tokens": order.short_tokens or SHORT_TOKENS}
    told |= {"preempt": order.preempt or None, "every": order.every or None}
    return Scheduling.model_construct(**told)
