"""What a place holds on its engine, and what it waits for (pure)."""

from __future__ import annotations

from tartlet_control.tables.engines import EngineState
from tartlet_control.tables.ledger import TABLES, Pool
from tartlet_control.tables.page_tables import EngineTables
from tartlet_control.tables.programs import CommandQueue, Place


def pool_of(engine: EngineState, pool_index: int) -> Pool | EngineTables:
    """Return a pool of an engine, or what has the numbers of its page tables."""
    return engine.tables if pool_index == TABLES else engine.pools[pool_index]


def num_held(place: Place, pool_index: int) -> int:
    """Return how many things of a pool a place holds, or how many of its page tables have a number."""
    if pool_index == TABLES:
        return sum(table.number >= 0 for table in place.tables.values())
    return place.num_held(pool_index)


def cost(place: Place, engine: EngineState) -> int:
    """Return about how many tokens are computed again if a place gives way; 0 if host memory has room for its pages."""
    rows = place.num_rows
    return 0 if rows <= engine.host.pool.num_free else rows * engine.spec.page_size


def queues(place: Place) -> list[CommandQueue]:
    """Return a program's own queues of a place."""
    return [queue for queue in place.program.queues.values() if queue.place is place and queue.id >= 0]


def all_queues(place: Place) -> list[CommandQueue]:
    """Return the queues of a place, control's own too."""
    return [queue for queue in place.program.queues.values() if queue.place is place]


def pending(place: Place) -> bool:
    """Return whether a place has commands that wait, or a grammar that no engine has compiled."""
    return any(queue.pending for queue in queues(place)) or place.grammars.asked


def waited_s(place: Place, now: float) -> float:
    """Return for how long a program has waited for what comes next, in seconds."""
    return now - min((q.thread.waits_since for q in queues(place) if q.thread.waits_since is not None), default=now)


def busy(place: Place) -> bool:
    """Return whether anything of a place waits or computes."""
    return any(queue.pending or queue.dispatched > queue.settled for queue in queues(place))
