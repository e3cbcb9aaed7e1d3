"""Gives a program rows of its own before it writes rows that are cached, or that another program has too."""

from __future__ import annotations

from tartlet_common.engine.step import HOLE
from tartlet_common.errors.registry import OutOfPages
from tartlet_control.tables.engines import RowCopy
from tartlet_control.tables.ledger import PAGES, POOL_NAMES
from tartlet_control.tables.page_tables import PageTable
from tartlet_control.tables.programs import Place


def own_rows(place: Place, table: PageTable, start: int) -> None:
    """Let a program alone have a table's rows from slot `start` on. What is in them before `start` is copied.

    Rows that only the cache has besides are kept no longer. Others are replaced.

    Raises:
        OutOfPages: the engine has no pages for that.
    """
    engine = place.engine
    assert engine is not None, "a table with rows is on an engine"
    pool = engine.pools[PAGES]
    first, within = divmod(start, engine.spec.page_size)
    replaced: list[int] = []
    for row in range(first, table.common):
        page = table.rows[row]
        if page == HOLE:
            continue
        if pool.holders(page) > 1:
            replaced.append(row)
        else:
            engine.prefixes.forget(page)
    if replaced:
        if engine.takeable(PAGES, len(replaced)) < len(replaced):
            raise OutOfPages(kind=POOL_NAMES[PAGES], total=pool.total)
        new = pool.take(len(replaced))
        engine.clear[PAGES].update(new)
        if within and replaced[0] == first:
            engine.copies.append(RowCopy(place.program.id, table.rows[first], new[0], within))
        old = [table.rows[row] for row in replaced]
        for row, page in zip(replaced, new, strict=True):
            table.rows[row] = page
        place.rows.add(new)
        pool.release(place.rows.drop(old))
        engine.tables.change(table.number, table.number, first, table.rows[first:])
    table.common = first
