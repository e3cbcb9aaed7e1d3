"""Gives back what a place holds on an engine."""

from __future__ import annotations

from tartlet_control.tables.engines import EngineState
from tartlet_control.tables.ledger import PAGES
from tartlet_control.tables.programs import Place


def free_place(place: Place, engine: EngineState) -> None:
    """Give back all that a program holds on an engine. Its tables are left without rows."""
    program = place.program
    program.num_pages -= place.num_held(PAGES)
    for table in place.tables.values():
        engine.host.freed(table.rows)
    for pool, held in zip(engine.pools, place.held, strict=True):
        pool.release(list(held.values()))
        held.clear()
    engine.pools[PAGES].release(list(place.rows))
    place.rows.clear()
    for table in place.tables.values():
        if table.number >= 0:
            table.cut(0, engine.spec.page_size)
            engine.tables.change(table.number, table.number, 0, [])
            engine.tables.give(table.number)
            table.number = -1
    place.grammars.leave(engine.grammars)
    engine.unseat(program.id)


def forget_freed(place: Place) -> None:
    """Have the engine forget grammars that the program has freed, once all is made again that begins with them."""
    if place.engine is not None and place.recovery is None and place.replay is None:
        place.grammars.forget_freed(place.engine.grammars)
