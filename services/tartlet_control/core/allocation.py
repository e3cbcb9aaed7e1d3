"""Allocates pages, embeds and slots, and ends the newest programs when none are left (Pie 5.2)."""

from __future__ import annotations

from collections.abc import Sequence

from tartlet_common.errors.registry import (
    PageQuotaExceeded,
    ProgramTooLarge,
    ResourceInUse,
    UnknownResource,
)
from tartlet_control.calls.kv import Alloc
from tartlet_control.core.places.memory import Memory, Waits
from tartlet_control.core.places.placing import Placing
from tartlet_control.tables.engines import EngineState
from tartlet_control.tables.ledger import EMBEDS, PAGES, POOL_NAMES, RESOURCE_NAMES
from tartlet_control.tables.programs import CommandQueue, Place


class Allocator:
    """Moves ids between engines' pools and what programs hold."""

    def __init__(self, placing: Placing, memory: Memory) -> None:
        self._placing = placing
        self._memory = memory

    def engine_of(self, place: Place) -> EngineState:
        """Return the engine of a place; at first use, choose one.

        Raises:
            NoEngine: no engine of the model is ready.
        """
        engine = place.engine
        if engine is None:
            program = place.program
            engine = place.engine = self._placing.choose(place)
            engine.seat(program.id)
            for queue in program.queues.values():
                if queue.place is place:
                    queue.spec = engine.spec
                    queue.lane = engine.new_lane()
        return engine

    def alloc(self, queue: CommandQueue, command: Alloc) -> bool:
        """Take what the command asks for. Returns False if there was no room and the program itself was ended for it.

        Raises:
            ResourceInUse: the program holds one of the ids already.
            PageQuotaExceeded, ProgramTooLarge: the program would hold more than it may, or than the engine has.
            NoEngine: no engine of the model is ready.
            Waits: there will be room later.
        """
        place, pool_index, ids = queue.place, command.pool, command.ids
        program, held = queue.program, place.held[pool_index]
        for v in ids:
            if v in held:
                raise ResourceInUse(kind=RESOURCE_NAMES[pool_index], id=v)
        engine = self.engine_of(place)
        pool, asked = engine.pools[pool_index], len(ids)
        if pool_index == PAGES and program.page_limit and program.num_pages + asked > program.page_limit:
            raise PageQuotaExceeded(held=program.num_pages, asked=asked, limit=program.page_limit)
        if place.num_held(pool_index) + asked > pool.total:
            raise ProgramTooLarge(
                asked=place.num_held(pool_index) + asked, kind=POOL_NAMES[pool_index], total=pool.total
            )
        if not self._has_room(place, pool_index, asked):
            return False
        physical = pool.take(asked)
        held.update(zip(ids, physical, strict=True))
        if place.lost and pool_index == EMBEDS:
            for v in ids:
                place.lost.pop(v, None)
        engine.clear[pool_index].update(physical)
        if pool_index == PAGES:
            program.num_pages += asked
            program.peak_pages = max(program.peak_pages, program.num_pages)
        return True

    def room_for_rows(self, place: Place, asked: int, given: list[int]) -> bool:
        """Make sure that an engine has pages for `asked` rows of a table, once the table has given some pages back.

        Returns False if there was no room and the program itself was ended for it. A page counts once for its program,
        however many of its tables share the page.

        Raises:
            PageQuotaExceeded, ProgramTooLarge: the program would hold more than it may, or than the engine has.
            Waits: there will be room later.
        """
        engine, program = self.engine_of(place), place.program
        pool = engine.pools[PAGES]
        freed = place.rows.count_last(given)
        left = program.num_pages - freed
        if program.page_limit and left + asked > program.page_limit:
            raise PageQuotaExceeded(held=left, asked=asked, limit=program.page_limit)
        most = place.num_held(PAGES) - freed + asked
        if most > pool.total:
            raise ProgramTooLarge(asked=most, kind=POOL_NAMES[PAGES], total=pool.total)
        return self._has_room(place, PAGES, asked, given)

    def room_for_table(self, place: Place) -> bool:
        """Make sure that an engine has a number for one more page table of a program.

        Returns False if there was none and the program itself was ended for it.

        Raises:
            TenantOverShare: the program's tenant has too many page tables on the engine.
            NoEngine: no engine of the model is ready.
            Waits: there will be room later.
        """
        self.engine_of(place)
        return self._memory.find_number(place)

    def _has_room(self, place: Place, pool_index: int, asked: int, given: Sequence[int] = ()) -> bool:
        """Find room for `asked` things, once pages of a table are given back."""
        engine = place.engine
        assert engine is not None
        if asked > 0 and self._memory.must_wait(place):
            raise Waits
        if engine.takeable(pool_index, asked) >= asked:
            return True
        pool = engine.pools[pool_index]
        alone = [page for page in given if place.rows[page] == pool.holders(page) == 1]
        for page in alone:  # else they would be cached instead of free
            engine.prefixes.forget(page)
        need = asked - len(alone)
        return pool.num_free >= need or self._memory.find_room(place, pool_index, need)

    @staticmethod
    def count_rows(place: Place, change: int) -> None:
        """Count pages that tables of a program have taken, or given back."""
        program = place.program
        program.num_pages += change
        program.peak_pages = max(program.peak_pages, program.num_pages)

    def dealloc(self, queue: CommandQueue, command: Alloc) -> None:
        """Give back those of the command's ids that the program holds.

        Raises:
            UnknownResource: the program doesn't hold one of them.
        """
        held = queue.place.held[command.pool]
        unknown = [v for v in command.ids if v not in held]
        self.free(queue, command.pool, [v for v in command.ids if v in held] if unknown else command.ids)
        if unknown:
            raise UnknownResource(kind=RESOURCE_NAMES[command.pool], id=unknown[0])

    def free(self, queue: CommandQueue, pool_index: int, ids: list[int]) -> None:
        """Give back ids that the program is known to hold."""
        engine = queue.place.engine
        if engine is None:
            return
        held = queue.place.held[pool_index]
        engine.pools[pool_index].release([held.pop(v) for v in ids])
        if pool_index == PAGES:
            queue.program.num_pages -= len(ids)
