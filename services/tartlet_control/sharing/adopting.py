"""Lets rows outlive control: the worker is told their digests, and the next control gives programs their rows again.

A row is named by the digest of all tokens up to its end, of the tenant and of the options (`lineage.chain`). So a
program gets exactly the row that its history asks for, or none, and nothing else need be compared. A table that keeps
out of the prefix cache gets rows of its own program alone: their digests name the program as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from tartlet_control.rebuild.logs import settle
from tartlet_control.sharing.reuse import root, unchanged
from tartlet_control.tables.engines import EngineState
from tartlet_control.tables.lineage import Line
from tartlet_control.tables.programs import Place

_PROBES: Final = 8
LEFT_S: Final = 60.0
"""Seconds after which rows of an earlier control that no program has taken over are free."""


def label(engine: EngineState, places: Iterable[Place], now: float) -> None:
    """Give the worker the digests of rows that have become full. Call this a few times a second.

    Args:
        engine: whose worker.
        places: what programs have on it.
        now: seconds on control's clock.
    """
    if len(engine.left) and now - engine.joined_s > LEFT_S:
        engine.left.evict(len(engine.left))
    if not engine.tables.kept:
        return
    for place in places:
        being_made = place.recovery is not None or place.replay is not None
        if not being_made and all(queue.settled >= count for queue, count in place.until.items()):
            _label(engine, place)


def _label(engine: EngineState, place: Place) -> None:
    settle(place)
    size = engine.spec.page_size
    for number, line in place.book.tables.items():
        table = place.tables.get(number)
        if table is None or table.number < 0 or min(line.plain, table.plain) // size <= table.labelled:
            continue
        rows = min(unchanged(place.log, number, min(line.plain, table.plain), size), len(table.rows))
        if rows > table.labelled:
            digests = _named(place, line, rows)
            engine.labels.label(table.rows[table.labelled : rows], digests[table.labelled :])
            table.labelled = rows


def likeness(place: Place, engine: EngineState) -> int:
    """Return of how many rows of a place's tables an engine has the contents, of a few of each table."""
    if not len(engine.left):
        return 0
    found = 0
    for line in place.book.tables.values():
        digests = _digests(place, line)
        found += sum(digest in engine.left for digest in digests[:: -(-len(digests) // _PROBES) or 1])
    return found


def _digests(place: Place, line: Line) -> list[bytes]:
    return _named(place, line, line.plain // place.model.spec.page_size)


def _named(place: Place, line: Line, rows: int) -> list[bytes]:
    """Return the digests by which a worker knows a table's first rows."""
    digests, program = line.chain(root(place, line.adapter), rows), place.program
    queue = program.queues.get(line.queue_id)
    if queue is None or queue.caches:
        return digests
    own = blake2b(program.id.encode(), person=b"tartlet-own-rows").digest()
    return [blake2b(digest, digest_size=len(digest), key=own).digest() for digest in digests]


def adopt(place: Place, engine: EngineState) -> dict[int, tuple[bytes, int]]:
    """Take the rows over that an engine still has of a place's tables.

    Returns their digests and pages, by the identity of the row. The place is the only holder of each.
    """
    adopted: dict[int, tuple[bytes, int]] = {}
    if not len(engine.left) or place.kept_on is not None:
        return adopted
    for line in place.book.tables.values():
        digests = _digests(place, line)
        known = next((at for at, row in enumerate(line.rows[: len(digests)]) if id(row) not in adopted), len(digests))
        taken = engine.left.take(digests[known:])
        for row, digest, page in zip(line.rows[known:], digests[known:], taken, strict=False):
            adopted[id(row)] = digest, page
    return adopted
