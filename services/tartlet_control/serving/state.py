"""Reports control's state, which `tartlet ps`, `top` and `doctor` show (docs/operations.md), and its engines."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from tartlet_common.engine.pools import Reach
from tartlet_common.rpc.tenancy import EVERYONE, Scope
from tartlet_control.core.core import Core
from tartlet_control.core.pool_orders import PoolOrders
from tartlet_control.order.expecting import left
from tartlet_control.tables.engines import EngineState
from tartlet_control.tables.models import ServedModel
from tartlet_control.tables.programs import ProgramState
from tartlet_protos import control_pb2

QUEUES_SHOWN: Final = 16
"""Queues of a program in the report: the oldest."""
REASON_CHARS: Final = 512
"""Characters of the reason why an engine can't have an adapter."""
PROGRAMS_SHOWN: Final = 3000
"""Programs in the report: the newest. More would not fit a message."""


def state_of(core: Core, scope: Scope = EVERYONE) -> dict[str, Any]:
    """Return the engines, models and programs of `scope`, the batching policy and totals as plain JSON values."""
    now = core.clock.now()
    reach = None if scope.tenant is None else Reach(scope.tenant)
    models = core.models if reach is None else core.models.seen_by(reach)
    shown = [p for p in core.lifecycle.programs.values() if scope.allows(p.tenant)]
    places = _places(core, now)
    return {
        "incarnation": core.incarnation,
        "batching": core.settings.batching,
        "order": core.orders.default.name,
        "placement": core.orders.placement.name,
        "steps_in_flight": core.settings.steps_in_flight,
        "models": [_model(m, core, reach) for m in models if m.engines or not core.models.stands_by(m)],
        "engines": [
            engine_state(e, core) for e in core.engines.values() if reach is None or reach.rank(e.home) is not None
        ],
        "runtimes": [
            {
                "id": s.runtime_id,
                "address": s.address,
                "connected": s.gone_since is None,
                "held": s.held,
                "programs": len(s.programs),
            }
            for s in core.sessions.values()
        ],
        "programs": [program_state(p, now, places.get(p.id, 0)) for p in shown[-PROGRAMS_SHOWN:]],
        "programs_left_out": max(0, len(shown) - PROGRAMS_SHOWN),
        "totals": {
            "started": core.lifecycle.started,
            "ended": core.lifecycle.ended,
            "running": len(core.lifecycle.programs),
            "steps": sum(e.steps for e in core.engines.values()),
            "computed_tokens": sum(e.computed_tokens for e in core.engines.values()),
            "sampled_tokens": sum(e.sampled_tokens for e in core.engines.values()),
            "leaks": core.leaks,
        },
    }


def _model(m: ServedModel, core: Core, reach: Reach | None) -> dict[str, Any]:
    told = {k: v for k, v in m.info().items() if k not in ("spec_json", "pools", "owned")}
    engines = m.engines if reach is None else m.usable(reach)
    told["placement"] = core.placing.policy(m).name
    told |= {"engines": len(engines), "ready": any(e.status == "ready" for e in engines)}
    told["adapters"] = [adapter.name for adapter in m.spec.adapters]
    return told | {"max_position": m.spec.max_position, "standby": core.models.stands_by(m)}


def engines_of(core: Core, programs: Mapping[str, int]) -> control_pb2.EnginesReply:
    """Return what a watcher of engines is told; `programs`: each engine's number of programs, by id."""
    return control_pb2.EnginesReply(
        incarnation=core.incarnation,
        engines=[
            control_pb2.EngineSeen(
                id=e.id,
                state=_standing(e, core),
                programs=programs.get(e.id, 0),
                model=e.spec.model,
                shared_pool=e.home.path if e.home.shared else "",
                pool=pool_of(e),
                programs_now=len(e.program_ids),
                waiting_s=round(core.waiting_s(e), 3),
                device_s=round(e.device_s, 2),
                refused={name: str(error)[:REASON_CHARS] for name, error in e.refused.items()},
            )
            for e in core.engines.values()
        ],
        orders=[_own(core.orders, pool) for pool in core.orders.of_pool | core.orders.durabilities],
    )


def _own(orders: PoolOrders, pool: str) -> control_pb2.PoolOrder:
    """Return what a pool has for its own: an order, a durability or both."""
    told = control_pb2.PoolOrder(pool=pool, durability=orders.durabilities.get(pool, ""))
    order, placement = orders.of_pool.get(pool), orders.placements.get(pool)
    if order is not None:
        told.order, asked = order.name, orders.asked[pool]
        told.quanta_s.extend(order.bounds_s)
        told.preempt, told.every = asked.preempt, asked.every
        if asked.starved_at is not None:
            told.starved_at = asked.starved_at
    if placement is not None:
        told.placement, told.short_tokens = placement.name, placement.short_tokens
    return told


def pool_of(e: EngineState) -> str:
    """Return the pool of an engine, TENANT/POOL; "" if its worker named neither."""
    return e.home.path if e.home.pool or e.home.owner else ""


def _standing(e: EngineState, core: Core) -> str:
    return "standby" if e.status == "ready" and core.models.stands_by(core.models.at(e.model_index)) else e.status


def engine_state(e: EngineState, core: Core) -> dict[str, Any]:
    """Return what is shown of an engine."""
    return {
        "id": e.id,
        "model": e.spec.model,
        "model_index": e.model_index,
        "pool": pool_of(e),
        "state": _standing(e, core) if e.gone_since is None else "resuming",
        "device": e.spec.device,
        "dtype": e.spec.dtype,
        "page_size": e.spec.page_size,
        "pools": {
            p.name: {"free": p.num_free, "held": p.num_held, "cached": p.num_cached, "total": p.total} for p in e.pools
        },
        "host_pages": {"free": e.host.pool.num_free, "total": e.host.pool.total, "page_ns": e.host.page_ns},
        "programs": len(e.program_ids),
        "order": core.batchers[e].order.name,
        "queues_waiting": len(core.batchers[e].waiting),
        "waiting_s": round(core.waiting_s(e), 3),
        "steps": e.steps,
        "in_flight": len(core.batchers[e].in_flight),
        "computed_tokens": e.computed_tokens,
        "cached_tokens": e.cached_tokens,
        "adopted_tokens": e.adopted_tokens,
        "sampled_tokens": e.sampled_tokens,
        "tokens_per_s": round(e.tokens_per_s, 1),
        "device_s": round(e.device_s, 3),
        "adapters": [adapter.name for adapter in e.spec.adapters],
        "retiring": [adapter.name for adapter in e.spec.retiring],
        "refused": {name: str(error) for name, error in e.refused.items()},
    }


def doing(p: ProgramState) -> str:
    """Return a word for what a program does: running, suspended, recovering, ending or killed."""
    if p.killed is not None or not p.live:
        return "ending" if p.killed is None else "killed"
    if not p.session.runtime_id:  # it waits for another runtime
        return "recovering"
    ways = [place.recovery for place in p.places.values() if place.recovery is not None]
    if not ways:
        return "running"
    return "suspended" if all(way.gave_way is not None for way in ways) else "recovering"


def _places(core: Core, now: float) -> dict[str, int]:
    """Return the place of each program with waiting commands among those of its engine: 1 goes first."""
    places: dict[str, int] = {}
    for batcher in core.batchers.values():
        for place, program_id in enumerate(dict.fromkeys(queue.program.id for queue in batcher.ranked(now)), 1):
            places[program_id] = min(place, places.get(program_id, place))
    return places


def program_state(p: ProgramState, now: float, place: int) -> dict[str, Any]:
    """Return what is shown of a program; `place`: its rank among those that wait, 0 if it doesn't wait."""
    return {
        "id": p.id,
        "name": p.name,
        "tenant": p.tenant,
        "model": p.default_model.name if p.default_model is not None else "",
        "runtime": p.session.runtime_id,
        "engines": [place.engine.id for place in p.places.values() if place.engine is not None],
        "state": doing(p),
        "age_s": round(now - p.started_s, 3),
        "pages": p.num_pages,
        "peak_pages": p.peak_pages,
        "queues": {str(q.id): len(q.pending) for q in islice(p.queues.values(), QUEUES_SHOWN) if q.id >= 0},
        "recovered_s": round(p.pauses.total_s, 3),
        "in_flight": p.in_flight,
        "service_s": round(p.account.service_s, 6),
        "waited_s": round(p.account.wait_s(now, (q.thread for q in p.queues.values())), 6),
        "rank": place,
        "session": p.belongs_to,
        "session_tokens": p.account.tokens,
        "expected_tokens": left(p.account),
        "sampled_tokens": p.sampled_tokens,
        "input_tokens": p.input_tokens,
        "computed_tokens": p.computed_tokens,
        "cached_tokens": p.cached_tokens,
        "commands": p.commands,
    }
