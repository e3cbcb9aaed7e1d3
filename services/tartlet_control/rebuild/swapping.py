"""Keeps the pages of a suspended program in its worker's host memory, where that costs less than to compute them again.

Only rows that hold tokens are kept, each once. Embeds and slots are made again: they take a token or two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tartlet_control.order.yielding import losing
from tartlet_control.tables.engines import EngineState
from tartlet_control.tables.page_tables import PageTable
from tartlet_control.tables.programs import Place


def cheaper(num_pages: int, page_ns: int, computed_s: float) -> bool:
    """Return whether pages are copied out and back in less time than their tokens are computed again.

    Args:
        num_pages: pages that would be copied.
        page_ns: nanoseconds to copy one of many pages, one way.
        computed_s: to compute the tokens again, in seconds; 0: not known, and copying is taken to be cheaper.

    Example:
        >>> cheaper(10, 100_000, 0.016), cheaper(10, 10_000_000, 0.016)
        (True, False)
    """
    return not computed_s or 2e-9 * num_pages * page_ns < computed_s


def keep(
    place: Place,
    engine: EngineState,
    computes_s: Callable[[int], float],
    others: Iterable[Place],
    weights: Mapping[str, float],
) -> None:
    """Keep the pages of a place that leaves an engine, if there is host memory and that is cheaper.

    Pages of tenants over their share of the host memory are dropped for a tenant within its own.

    Args:
        place: still has its rows on the engine.
        engine: that it leaves.
        computes_s: returns the seconds that the engine takes for so many tokens of a prompt.
        others: the places that have left engines, the latest last.
        weights: of tenants; 1 for those that aren't named.
    """
    host = engine.host
    if not host.pool.total:
        return
    rows = _rows(place)
    tokens = sum({id(row): len(row) for line in place.book.tables.values() for row in line.rows}.values())
    if not rows or not cheaper(len(rows), host.page_ns, computes_s(tokens)):
        return
    kept = [(other, other.program.tenant, len(other.kept)) for other in others if other.kept_on is engine]
    for other in losing(place.program.tenant, len(rows), host.pool.num_free, kept, weights):
        forget(other)
    if len(rows) <= host.pool.num_free:
        place.kept = dict(zip(rows, host.copy_out([*rows.values()]), strict=True))
        place.kept_on = engine


def _rows(place: Place) -> dict[int, int]:
    """Return the page of each row with tokens, by the identity of the row."""
    pages: dict[int, int] = {}
    size = place.model.spec.page_size
    for number, line in place.book.tables.items():
        filled = -(-line.length // size)
        for row, page in zip(line.rows[:filled], place.tables[number].rows, strict=False):
            pages.setdefault(id(row), page)
    return pages


def bring_back(place: Place, engine: EngineState, tables: dict[int, PageTable]) -> set[int]:
    """Have kept pages copied into the new pages of a place; returns the rows that need no computing, by identity.

    Args:
        place: has rows on the engine again.
        engine: its engine. On another one than before, the kept pages are given back unused.
        tables: of the place, by the identity of their lines.
    """
    if place.kept_on is not engine:
        forget(place)
        return set()
    into: dict[int, int] = {}
    for line in place.book.tables.values():
        table = tables.get(id(line))
        if table is not None:
            into.update({id(row): page for row, page in zip(line.rows, table.rows, strict=True)})
    kept, place.kept, place.kept_on = place.kept, {}, None
    engine.host.copy_in([*kept.values()], [into[row] for row in kept])
    return set(kept)


def forget(place: Place) -> None:
    """Give the kept pages of a place back, because it won't need them."""
    if place.kept_on is not None:
        place.kept_on.host.forget([*place.kept.values()])
    place.kept, place.kept_on = {}, None
