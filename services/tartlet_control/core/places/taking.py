"""Gives a place that comes to an engine what its book says it holds: ids of the pools, and rows of page tables."""

from __future__ import annotations

from collections.abc import Iterable

from tartlet_control.tables.engines import EngineState
from tartlet_control.tables.ledger import PAGES
from tartlet_control.tables.page_tables import PageTable
from tartlet_control.tables.programs import Place


def take(place: Place, engine: EngineState, pool: int, ids: Iterable[int]) -> None:
    """Give a place things of an engine's pool, under the program's ids."""
    wanted = [*ids]
    physical = engine.pools[pool].take(len(wanted))
    place.held[pool].update(zip(wanted, physical, strict=True))
    engine.clear[pool].update(physical)


def take_tables(place: Place, engine: EngineState, adopted: dict[int, int]) -> dict[int, PageTable]:
    """Give the program's tables rows; returns the tables by the identity of their lines.

    `adopted`: the pages that hold rows already, by the identity of the row. They are the place's.
    """
    pool, tables = engine.pools[PAGES], {}
    physical = dict(adopted)  # by the identity of a row
    for number, line in place.book.tables.items():
        table = place.tables.get(number)
        if table is None:
            table = place.tables[number] = PageTable(line.queue_id)
        table.queue_id = line.queue_id
        for row in line.rows:
            page = physical.get(id(row))
            if page is None:
                [page] = pool.take(1)
                physical[id(row)] = page
            table.rows.append(page)
        place.rows.add(table.rows)
        if line.rows:
            table.number = engine.tables.take(place.program.tenant)
            tables[id(line)] = table
    engine.clear[PAGES].update(page for row, page in physical.items() if row not in adopted)
    return tables
