"""Executes `table` (Pie 5.2 manages pages; tables share them): extends, forks, cuts and frees page tables.

A `table` whose source belongs to another queue sees that source as it stands between two commands of the source's
queue: behind those that were submitted before the `table`, before those that were submitted after it. A `Share` in the
source's queue marks that moment. The `table` has its turn once the commands before the share have ended on the engine:
if one of them fails, rows may hold nothing, and the `table` fails with its error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tartlet_common.engine.spec import EngineSpec
from tartlet_common.engine.step import HOLE
from tartlet_common.errors.base import TartletError
from tartlet_common.errors.registry import (
    InvalidArgument,
    ResourceQuotaExceeded,
    UnknownResource,
    UnsupportedTrait,
)
from tartlet_control.calls.table_masks import DropRows, find
from tartlet_control.calls.tables import Share, Table
from tartlet_control.core.allocation import Allocator
from tartlet_control.core.places.memory import Waits
from tartlet_control.order import book
from tartlet_control.rebuild.logs import note
from tartlet_control.rebuild.notes import share_key
from tartlet_control.tables.ledger import PAGES
from tartlet_control.tables.page_tables import MAX_TABLES, PageTable, pages_of
from tartlet_control.tables.programs import CommandQueue, Place, Sync

ROWS_A_POSITION = 2
"""How many times over a table may have the rows that hold all of a model's positions."""


class TableOps:
    """Changes the page tables of programs, and tells engines of the changes."""

    def __init__(self, allocator: Allocator, wake: Callable[[CommandQueue], None]) -> None:
        """`wake` is called with a queue whose head waited for a share."""
        self._allocator = allocator
        self._wake = wake

    def arrive(self, queue: CommandQueue, command: Table) -> CommandQueue | None:
        """Take note of a `table` that was submitted.

        Returns:
            The queue that must get the command's `share`; None if the source belongs to the command's own queue.

        Raises:
            InvalidArgument: the table belongs to another queue.
            UnknownResource: there is no such source.
            ResourceQuotaExceeded: the program has as many tables as it may.
        """
        place = queue.place
        tables = place.tables
        table, source = tables.get(command.table), tables.get(command.source)
        if table is not None and table.claimed != queue.id:
            raise InvalidArgument(argument="table", detail=f"{command.table} belongs to queue {table.claimed}")
        if source is None and command.source != command.table:
            raise UnknownResource(kind="table", id=command.source)
        if table is None:
            if len(tables) >= MAX_TABLES:
                raise ResourceQuotaExceeded(held=len(tables), kind="page tables", asked=1, limit=MAX_TABLES)
            table = tables[command.table] = PageTable(queue.id)
        table.waiting += 1
        if source is None or source.claimed == queue.id:
            return None
        source_queue = queue.program.queues[source.claimed]
        command.share = Share(source_queue, command)
        return source_queue

    def share(self, share: Share) -> None:
        """Take the rows for the `table` of another queue, as the source has them now.

        Raises:
            Waits: there will be room for one more table later.
        """
        if share.done:
            return
        by, place = share.by, share.queue.place
        source = place.tables.get(by.source)
        keep = by.keep_tokens // share.queue.spec.page_size
        engine = place.engine
        try:
            if source is None or not source.rows or engine is None:
                raise UnknownResource(kind="table", id=by.source)
            _check_keep(source, keep, by)
            if keep and not self._allocator.room_for_table(place):
                return
            taken = PageTable(by.queue.id)
            if keep:
                taken.number = engine.tables.take(place.program.tenant)
                self._fork(place, source, keep, taken)
            place.tables[share_key(by)] = taken
        except TartletError as e:
            self.refuse_share(share, e)
            return
        note(share.queue.place, share)
        queue = share.queue
        if keep and queue.settled < queue.dispatched:  # what the rows hold may still fail on the engine
            queue.syncs.append(Sync(queue.dispatched, 0, queue.reset_at, share, partial(self._written, share)))
        else:
            self._written(share, None)

    def _written(self, share: Share, error: TartletError | None) -> None:
        """Let the `table` have its rows: the commands before the share have ended, with an error if one failed."""
        if not share.done:
            share.done, share.error = True, error
            self._wake(share.by.queue)

    def refuse_share(self, share: Share, cause: TartletError) -> None:
        """Note that a command before the share has failed, so the source isn't what the program meant."""
        self._written(share, cause)

    def execute(self, queue: CommandQueue, command: Table) -> bool:
        """Change the table. Returns False if there was no room and the program itself was ended for it.

        Raises:
            UnknownResource: the source doesn't exist (any more).
            InvalidArgument: the source is shorter than what is kept, or the table would be too long.
            PageQuotaExceeded, ProgramTooLarge: the program would hold more than it may, or than the engine has.
            TenantOverShare: the program's tenant has too many tables on the engine.
            NoEngine: no engine of the model is ready.
            Waits: there will be room later.
        """
        place, share = queue.place, command.share
        table = place.tables[command.table]
        waits = False
        try:
            if share is not None and share.error is not None:
                raise share.error
            _check_rows(queue.spec, command)
            if command.source == command.table:
                return self._extend(queue, command, table)
            if share is not None:
                taken = place.tables.get(share_key(command))
                if taken is None:  # a history that makes no sense may say so
                    raise UnknownResource(kind="table", id=command.source)
                return self._replace(queue, command, table, taken)
            source = place.tables.get(command.source)
            if source is None or not source.rows or place.engine is None:
                raise UnknownResource(kind="table", id=command.source)
            keep = command.keep_tokens // queue.spec.page_size
            _check_keep(source, keep, command)
            if keep and not self._allocator.room_for_table(place):
                return False
            copy = PageTable(queue.id)
            if keep:
                copy.number = place.engine.tables.take(place.program.tenant)
                self._fork(place, source, keep, copy)
            place.tables[share_key(command)] = copy
            return self._replace(queue, command, table, copy)
        except Waits:
            waits = True
            if share is None:  # it takes its rows again when it has its turn
                self._drop_taken(place, command)
            raise
        finally:
            if not waits:
                self._finish(place, command)

    def shrink(self, queue: CommandQueue, command: Table) -> None:
        """Do what a `table` does in a poisoned queue: drop the rows that it would have dropped."""
        place = queue.place
        table = place.tables[command.table]
        keep = command.keep_tokens // queue.spec.page_size if command.source == command.table else 0
        self._cut(place, table, min(keep, len(table.rows)))
        if command.share is not None:
            command.share.done = True
        self._finish(place, command)

    def drop(self, queue: CommandQueue, command: DropRows) -> None:
        """Free rows inside a table. The slots behind them keep their numbers.

        Raises:
            UnknownResource, InvalidArgument: the table isn't there, isn't the queue's, or is too short.
            UnsupportedTrait: the engine's worker is of a release without page tables.
        """
        table, place, size = find(command), queue.place, queue.spec.page_size
        engine = place.engine
        assert engine is not None, "a table with rows is on an engine"
        if not engine.tables.kept:
            raise UnsupportedTrait(model=engine.spec.model, trait="mask_table")
        first, end = command.first // size, (command.first + command.length) // size
        gone = place.rows.drop(pages_of(table.rows[first:end]))
        engine.pools[PAGES].release(gone)
        table.rows[first:end] = [HOLE] * (end - first)
        table.masked(command.first)
        self._allocator.count_rows(place, -len(gone))
        engine.tables.change(table.number, table.number, first, table.rows[first:])

    # ---- parts ----------------------------------------------------------------------------------------------------

    def _extend(self, queue: CommandQueue, command: Table, table: PageTable) -> bool:
        """Cut a table and add rows to it."""
        place = queue.place
        keep = command.keep_tokens // queue.spec.page_size
        _check_keep(table, keep, command)
        given = pages_of(table.rows[keep:])
        if command.new_rows and table.number < 0 and not self._allocator.room_for_table(place):
            return False
        if command.new_rows and not self._allocator.room_for_rows(place, command.new_rows, given):
            return False
        if not table.rows:
            table.queue_id = queue.id
        self._cut(place, table, keep)
        if command.new_rows and table.number < 0:  # it had no rows, or has just lost them all
            table.number = self._allocator.engine_of(place).tables.take(place.program.tenant)
        self._add(place, table, command.new_rows)
        return True

    def _replace(self, queue: CommandQueue, command: Table, table: PageTable, rows: PageTable) -> bool:
        """Give a table the rows of `rows`, which is left empty, and new ones."""
        place = queue.place
        engine = self._allocator.engine_of(place)
        if command.new_rows:
            if rows.number < 0 and table.number < 0 and not self._allocator.room_for_table(place):
                return False
            if not self._allocator.room_for_rows(place, command.new_rows, pages_of(table.rows)):
                return False
        self._cut(place, table, 0)
        if command.new_rows and rows.number < 0:
            rows.number = engine.tables.take(place.program.tenant)
        table.queue_id = queue.id
        table.number, rows.number = rows.number, -1
        table.take_over(rows, queue.spec.page_size, len(rows.rows))
        table.shared, rows.rows = rows.shared, []
        self._add(place, table, command.new_rows)
        return True

    def _fork(self, place: Place, source: PageTable, keep: int, to: PageTable) -> None:
        """Let `to`, which is empty and has a number, share the first `keep` rows of `source`."""
        engine = place.engine
        assert engine is not None
        to.take_over(source, engine.spec.page_size, keep)
        place.rows.add(pages_of(to.rows))
        source.shared, to.shared = max(source.shared, keep), keep
        engine.tables.change(to.number, source.number, keep, [])

    def _add(self, place: Place, table: PageTable, count: int) -> None:
        """Add new rows to a table; there is room."""
        if not count:
            return
        engine, before = place.engine, len(table.rows)
        assert engine is not None
        rows = engine.pools[PAGES].take(count)
        table.rows += rows
        place.rows.add(rows)
        engine.clear[PAGES].update(rows)
        engine.tables.change(table.number, table.number, before, rows)
        self._allocator.count_rows(place, count)

    def _cut(self, place: Place, table: PageTable, keep: int) -> None:
        """Keep the first `keep` rows of a table. A table without rows gives its number back."""
        engine = place.engine
        if engine is None or keep >= len(table.rows):
            return
        gone = place.rows.drop(table.cut(keep, engine.spec.page_size))
        engine.pools[PAGES].release(gone)
        self._allocator.count_rows(place, -len(gone))
        engine.tables.change(table.number, table.number, keep, [])
        if not keep:
            engine.tables.give(table.number)
            table.number = -1

    def _finish(self, place: Place, command: Table) -> None:
        """Forget what a `table` needed, and its table if that doesn't exist. A context without rows ends its call."""
        self._drop_taken(place, command)
        table = place.tables.get(command.table)
        if table is None:  # the program was ended
            return
        table.waiting -= 1
        if not table.rows:
            book.closes(command.queue.thread, command.arrived)
            if not table.waiting:
                del place.tables[command.table]

    def _drop_taken(self, place: Place, command: Table) -> None:
        taken = place.tables.pop(share_key(command), None)
        if taken is not None:
            self._cut(place, taken, 0)


def _check_rows(spec: EngineSpec, command: Table) -> None:
    """Check that a table won't be longer than a context can use.

    Rows that were dropped count: control and worker keep their places while the table lives.

    Raises:
        InvalidArgument: it would be.
    """
    rows = command.keep_tokens // spec.page_size + command.new_rows
    most = ROWS_A_POSITION * -(-spec.max_position // spec.page_size)
    if command.new_rows and rows > most:
        detail = (
            f"the table would have {rows} rows, dropped ones included, and a table of this model has at most {most}"
        )
        raise InvalidArgument(argument="new_rows", detail=detail)


def _check_keep(source: PageTable, keep: int, command: Table) -> None:
    """Check that a source has the rows that are kept.

    Raises:
        InvalidArgument: it doesn't.
    """
    if keep > len(source.rows):
        detail = f"{command.keep_tokens} are more than the {len(source.rows)} rows of table {command.source} hold"
        raise InvalidArgument(argument="keep_tokens", detail=detail)
