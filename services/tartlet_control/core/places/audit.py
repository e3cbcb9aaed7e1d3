"""Compares the pools of an idle engine with what programs hold."""

from __future__ import annotations

from collections.abc import Iterator

from tartlet_control.tables.engines import EngineState
from tartlet_control.tables.ledger import PAGES, LedgerFault
from tartlet_control.tables.page_tables import pages_of
from tartlet_control.tables.programs import Place


def audit(engine: EngineState, places: list[Place], *, recount: bool) -> Iterator[LedgerFault]:
    """Yield what doesn't balance: free + held + cached = total in each pool, and programs hold all that is held.

    Args:
        engine: it is idle.
        places: what programs hold on it.
        recount: whether all references are counted anew, which takes milliseconds.
    """
    for i, pool in enumerate(engine.pools):
        holds = sum(place.num_held(i) for place in places)
        try:
            if recount and i == PAGES:
                holds = _recounted(engine, places)
            if recount:
                pool.check()
        except LedgerFault as e:
            yield e
            continue
        if holds != pool.num_refs:
            yield LedgerFault(f"holders of {pool.name}", 0, holds, pool.num_refs)
        elif recount and (held := len(set().union(*(place.ids_held(i) for place in places)))) != pool.num_held:
            yield LedgerFault(pool.name, pool.num_free, held, pool.total, pool.num_cached)


def _recounted(engine: EngineState, places: list[Place]) -> int:
    """Count the pages that programs hold, page by page.

    Raises:
        LedgerFault: more or fewer tables have a number than exist.
    """
    numbered = sum(table.number >= 0 for place in places for table in place.tables.values())
    numbered += engine.prefixes.num_branches
    if not numbered == engine.tables.num_held == sum(engine.tables.counts.values()) + engine.prefixes.num_branches:
        raise LedgerFault("page tables", 0, numbered, engine.tables.num_held)
    rows = (set().union(*(pages_of(table.rows) for table in place.tables.values())) for place in places)
    return sum(map(len, rows)) + sum(len(place.held[PAGES]) for place in places)
