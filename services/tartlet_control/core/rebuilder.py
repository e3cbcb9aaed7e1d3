"""Brings programs' state from one engine to another: what an engine's death, a drain or a move needs.

A program's place on an engine is *suspended* first: nothing of it is sent or executed. Once its book is complete, the
place takes an engine with room, control computes the contents again (`rebuild.plan`), and the program goes on. The
program doesn't notice, except by the time that this takes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from tartlet_common.config.settings import ControlSettings
from tartlet_common.errors.registry import TartletError, WorkerLost
from tartlet_control.core import trials
from tartlet_control.core.lifecycle import Lifecycle
from tartlet_control.core.places import pausing, taking
from tartlet_control.core.places.coming import Pace, engine_for
from tartlet_control.core.places.freeing import forget_freed, free_place
from tartlet_control.core.places.holding import all_queues, pending, queues
from tartlet_control.core.places.memory import Memory
from tartlet_control.core.queue_runner import QueueRunner
from tartlet_control.core.trials import Trials
from tartlet_control.order import book
from tartlet_control.order.wanting import Turn
from tartlet_control.rebuild import remaking, room, suspension, swapping
from tartlet_control.rebuild.counters import Counters
from tartlet_control.rebuild.logs import settle
from tartlet_control.rebuild.plan import plan
from tartlet_control.sharing import adopting
from tartlet_control.tables.engines import EngineState
from tartlet_control.tables.ledger import EMBEDS, PAGES, SLOTS
from tartlet_control.tables.programs import Place, ProgramState, Recovery

log = logging.getLogger("tartlet.control")

_PASS_TOKENS: Final = 512
SPARE: Final = 16
"""A program that gave way comes back when this part of an engine's pages is free beside its own."""


class Rebuilder:
    """Holds the places that are on their way to an engine."""

    def __init__(self, lifecycle: Lifecycle, runner: QueueRunner, settings: ControlSettings, memory: Memory) -> None:
        self._lifecycle = lifecycle
        self._memory = memory
        self._runner = runner
        self._settings = settings
        runner.on_remade = self._remade
        self.leaving: dict[Place, None] = {}
        """Suspended places whose engine is alive and hasn't answered all commands."""
        self.waiting: dict[Place, None] = {}
        """Suspended places without an engine."""
        self.making: dict[Place, None] = {}
        """Places whose contents are being computed again."""
        self._ahead: set[EngineState] = set()  # those that had enough to make at the last pump
        self._coming: dict[Place, int] = {}  # those whose pages, or grammars, come with a step: the steps before that
        self.trials = Trials(lifecycle)
        self.counters = Counters()
        self._now = 0.0

    @property
    def num_moving(self) -> int:
        """How many programs are on their way to another engine."""
        on_their_way = (*self.leaving, *self.waiting, *self.making)
        return sum(p.recovery is not None and p.recovery.gave_way is None for p in on_their_way)

    @property
    def busy(self) -> bool:
        """Whether any place is on its way."""
        return bool(self.leaving or self.waiting or self.making or self.trials.running)

    # ---- engines that are lost --------------------------------------------------------------------------------------

    def lose(self, engine: EngineState, error: TartletError, now: float) -> None:
        """Suspend what an engine held, and queue again what it will never answer."""
        self._now = now
        batcher = self._lifecycle.batchers.pop(engine)
        self.trials.lose(engine)
        programs = {p: p.places[engine.model_index] for p in self._lifecycle.placed_on(engine)}
        ended: dict[ProgramState, None] = {}
        suspects: dict[ProgramState, None] = {}
        for sent in batcher.clear():
            for queue in [command.queue for commands in sent.batches for command in commands]:
                program = queue.program
                program.dispatched -= 1
                if queue.id < 0 or not program.live:
                    queue.settled += 1
                    program.in_flight -= queue.id < 0
                else:
                    queue.dispatched -= 1
                if program.live:
                    programs[program] = queue.place
                    suspects[program] = None
                else:
                    ended[program] = None
        engine.outgoing.clear()
        for place in self.waiting:
            if place.kept_on is engine:
                swapping.forget(place)
        trials.count_death(suspects)
        for program, place in programs.items():
            self._lose(place, engine, error, suspect=program in suspects)
        for program in ended:
            program.in_flight = program.dispatched
            self._lifecycle.settle_if_done(program)

    def _lose(self, place: Place, engine: EngineState, error: TartletError, *, suspect: bool) -> None:
        """Suspend a program whose engine is lost, or end it if its state can't be made again."""
        program = place.program
        if place.engine is engine:
            free_place(place, engine)
            self._unplace(place)
        settle(place)
        until = suspension.undo(place)
        obstacle = suspension.obstacle(place)
        if program.alone >= trials.DEATHS_ALONE:
            detail = (
                f"{engine.id}, which is the {trials.ordinal(program.alone)} in a row that died while it ran it alone"
            )
            self._end(place, WorkerLost(engine=detail))
        elif obstacle:
            self._end(place, error if not isinstance(error, WorkerLost) else suspension.not_plain(error, obstacle))
        else:
            if place.recovery is None:
                place.recovery = Recovery(engine.spec, error, self._now)
            place.recovery.suspect |= suspect
            place.recovery.until = until
            self._wait(place)

    def take_back(self, place: Place, recovery: Recovery) -> None:
        """Let a place wait for an engine whose state is known from its book and its log alone."""
        settle(place)
        recovery.until = suspension.undo(place)
        place.recovery = recovery
        self._wait(place)

    def _end(self, place: Place, error: TartletError) -> None:
        self._forget(place)
        place.recovery = None
        self._lifecycle.kill(place.program, error)

    def _forget(self, place: Place) -> None:
        for places in (self.leaving, self.waiting, self.making, self._coming):
            places.pop(place, None)

    def _unplace(self, place: Place) -> None:
        self._forget(place)
        place.engine = None
        for queue in all_queues(place):
            queue.lane = -1
            if queue.id < 0:
                queue.pending.clear()

    def _wait(self, place: Place) -> None:
        recovery, book = place.recovery, place.book
        assert recovery is not None
        recovery.need = (book.num_rows() + len(book.pages), len(book.embeds), len(book.slots))
        self.waiting[place] = None
        pausing.begin(place, recovery)

    # ---- moves ------------------------------------------------------------------------------------------------------

    def suspend(self, place: Place, cause: TartletError, now: float, *, to: EngineState | None = None) -> bool:
        """Begin to take a program off its engine, which is alive. Its last answers come first.

        `to`: the engine that it shall move to, as long as that takes programs.

        Returns False if the program's state couldn't be made again elsewhere, as far as is known.
        """
        engine = place.engine
        if engine is None or not self.may_leave(place):
            return False
        recovery = place.recovery = Recovery(engine.spec, cause, now)
        recovery.to = to
        recovery.suspect = bool(place.program.deaths)
        batcher = self._lifecycle.batchers[engine]
        for queue in all_queues(place):
            batcher.unready(queue)
        self.leaving[place] = None
        return True

    def give_way(self, place: Place, cause: TartletError, now: float) -> bool:
        """Suspend a program so that its pages come free, until there is room for them again."""
        engine = place.engine
        if not self.suspend(place, cause, now):
            return False
        assert place.recovery is not None
        place.recovery.gave_way = engine
        for queue in queues(place):
            if queue.pending:
                book.waits(queue.thread, now)
        self.counters.gave_way += 1
        return True

    def may_leave(self, place: Place) -> bool:
        """Return whether a program's state could be made again, and isn't on its way already."""
        if place.recovery is None and place.program.live:
            settle(place)
        tried = place in self.trials.running.values()
        return place.recovery is None and place.program.live and not tried and not suspension.obstacle(place)

    def has_room(self, place: Place) -> bool:
        """Return whether another engine has room for a program, beside the programs that are on their way."""
        return room.elsewhere(place, [*self.leaving, *self.waiting])

    def _leave(self, place: Place) -> None:
        """Free what a suspended program held, once all that it had sent has settled; or let it stay."""
        settle(place)
        engine = place.engine
        assert engine is not None
        if place.log:
            return
        if suspension.obstacle(place):
            del self.leaving[place]
            self._open(place)
            return
        batcher = self._lifecycle.batchers[engine]
        for queue in all_queues(place):
            batcher.forget(queue)
        if place.recovery is not None and place.recovery.gave_way is engine:
            swapping.keep(place, engine, batcher.times.predict, self.waiting, self._memory.weights)
        free_place(place, engine)
        self._unplace(place)
        suspension.count_tables(place)
        self._wait(place)

    # ---- engines that take places -----------------------------------------------------------------------------------

    def pump(self, now: float) -> None:
        """Bring suspended programs to engines with room: the oldest first, and suspects last and one by one."""
        self._now = now
        self.trials.forget_ended()
        for place in [p for p in (*self.leaving, *self.waiting, *self.making) if not p.program.live]:
            self._forget(place)
        for place in list(self._coming):
            self._make(place)
        for place in list(self.leaving):
            self._leave(place)
        pace = Pace(self.making)
        self._ahead = pace.ahead
        full: set[EngineState] = set()
        left = {p.recovery.gave_way for p in self.waiting if p.recovery is not None}
        turns = {e: self._memory.turns(e, now) for e in left if e is not None and e in self._lifecycle.batchers}
        for place in sorted(self.waiting, key=lambda p: self._turn(p, turns)):
            full |= pace.ahead
            if full.issuperset(place.model.engines):
                if len(full) == len(self._lifecycle.batchers):
                    return
                continue
            recovery, chosen = place.recovery, engine_for(place, full)
            assert recovery is not None
            if chosen is None or chosen in full or (recovery.gave_way is not None and not pending(place)):
                continue
            if recovery.gave_way is not None and self._memory.before(place, turns.get(chosen, {}), chosen, now):
                continue  # those behind it may be what comes before it
            blocked = recovery.suspect and (chosen in self.trials.running or self._makes(chosen))
            if blocked or not self._may_return(place, chosen) or not self._begin(place, chosen):
                full.add(chosen)
            else:
                pace.begin(place)

    @property
    def goes_on(self) -> bool:
        """Whether another pump would begin more places at once, because the last one only ended for its pace."""
        return bool(self.waiting) and bool(self._ahead - Pace(self.making).ahead)

    @staticmethod
    def _turn(place: Place, turns: Mapping[EngineState, Mapping[Place, Turn]]) -> tuple[bool, int, Turn]:
        recovery, program = place.recovery, place.program
        assert recovery is not None
        of_engine = turns.get(recovery.gave_way, {}) if recovery.gave_way is not None else {}
        return recovery.suspect, program.deaths, of_engine.get(place, (False, (float(program.created),)))

    def _may_return(self, place: Place, engine: EngineState) -> bool:
        """Return whether there is room to spare for a program that gave way; else let others give way to it."""
        recovery = place.recovery
        assert recovery is not None
        if recovery.gave_way is None:
            return True
        pages = engine.pools[PAGES]
        spare = min(pages.total // SPARE, pages.total - recovery.need[PAGES]) if engine.program_ids else 0
        need = (recovery.need[PAGES] + spare, recovery.need[EMBEDS] + room.FEWEST, recovery.need[SLOTS] + 1)
        if room.fits(engine, need):
            return True
        self._memory.make_way(place, engine, need, self._now)
        return False

    def expire(self, now: float) -> None:
        """End programs that have waited for an engine for too long."""
        for place in list(self.waiting):
            recovery = place.recovery
            if recovery is None:  # the program has ended since the last pump
                self._forget(place)
                continue
            late = now - recovery.since_s >= self._settings.rebuild_grace_s
            if late and not room.candidates(place):
                self._end(place, recovery.cause)

    def _makes(self, engine: EngineState) -> bool:
        return any(place.engine is engine for place in self.making)

    def _begin(self, place: Place, engine: EngineState) -> bool:
        """Let a place take an engine, and queue what makes its contents again. Returns False if there is no room."""
        book, recovery, program = place.book, place.recovery, place.program
        assert recovery is not None
        share = int(self._settings.rebuild_share * engine.spec.max_batch_tokens)
        longest = max((line.length for line in book.tables.values()), default=0)
        scratch = min(max(share, 1), _PASS_TOKENS, max(longest, 1))
        _, embeds, slots = engine.pools
        spare = (embeds.num_free - len(book.embeds)) // (2 if self._makes(engine) else 1)
        scratch = min(scratch, spare)
        adopted = adopting.adopt(place, engine)
        pages = recovery.need[PAGES] - len(adopted)
        if (
            scratch < min(longest, room.FEWEST) or scratch < 1
            or engine.takeable(PAGES, pages) < pages
            or slots.num_free < recovery.need[SLOTS] + 1
            or not self._memory.fits_tables(place, engine, len(book.tables))
        ):  # fmt: skip
            engine.left.give_back(adopted.values())
            return False
        del self.waiting[place]
        self.making[place] = None
        place.engine = engine
        engine.seat(program.id)
        own = place.own_queue()
        for queue in all_queues(place):
            queue.spec, queue.lane = engine.spec, engine.new_lane()
        taking.take(place, engine, PAGES, book.pages)
        taking.take(place, engine, EMBEDS, [*book.embeds, *range(remaking.SCRATCH, remaking.SCRATCH + scratch)])
        taking.take(place, engine, SLOTS, [*book.slots, remaking.SCRATCH])
        tables = taking.take_tables(place, engine, {row: page for row, (_, page) in adopted.items()})
        there = (come := swapping.bring_back(place, engine, tables)) | adopted.keys()
        engine.adopted_tokens += len(adopted) * engine.spec.page_size
        made = plan(book.tables.values(), book.embeds, scratch, engine.spec.page_size, there)
        place.lost = made.lost
        program.num_pages += place.num_held(PAGES)
        program.peak_pages = max(program.peak_pages, program.num_pages)
        self.counters.tokens += made.num_tokens
        engine.remade_tokens += made.num_tokens
        if recovery.gave_way is engine:
            self._memory.credit(engine).spend(made.num_tokens - recovery.owed)
        took_s = self._lifecycle.batchers[engine].times.predict(made.num_tokens)
        place.made_at_s = program.account.service_s + took_s
        if recovery.suspect:
            self.trials.begin(engine, place)
        place.grammars.come(engine.grammars, program.id, suspension.needed_grammars(place))
        commands = remaking.commands(own, made, tables, book, self._now)
        recovery.until[own] = own.settled + sum(bool(c.kind) for c in commands)
        own.pending.extend(commands)
        if come:
            self._coming[place] = engine.host.num_steps
        self._make(place)
        return True

    def _make(self, place: Place) -> None:
        """Let the commands that make a state again be sent, once its grammars are there and no step brings pages."""
        engine = place.engine
        assert engine is not None
        batcher = self._lifecycle.batchers[engine]
        if place.grammars.refused:
            self._end(place, suspension.not_plain(WorkerLost(engine=engine.id), "grammar"))
        elif not place.grammars.ready:
            self._coming.setdefault(place, -1)
        elif self._coming.get(place) != engine.host.num_steps or not batcher.waiting or batcher.only is not None:
            self._coming.pop(place, None)
            self._runner.advance(place.own_queue())

    def _remade(self, place: Place) -> None:
        """Let a program go on, because all that makes its state again has been sent."""
        engine, recovery = place.engine, place.recovery
        assert engine is not None
        assert recovery is not None
        for pool in (EMBEDS, SLOTS):
            held = place.held[pool]
            engine.pools[pool].release([held.pop(v) for v in [v for v in held if v >= remaking.SCRATCH]])
        for number, line in place.book.tables.items():
            table = place.tables[number]
            table.shared, table.written, table.plain = line.shared, line.length, line.plain
        del self.making[place]
        self._open(place)
        self.trials.settled(engine)

    def _open(self, place: Place) -> None:
        """Let a program's commands be executed and sent again."""
        recovery = place.recovery
        assert recovery is not None
        place.recovery = None
        forget_freed(place)
        paused_s = self._now - recovery.since_s
        self.counters.went_on(paused_s)
        pausing.end(place, recovery, paused_s)
        place.until = recovery.until
        for queue in all_queues(place):
            if queue.poison is not None:
                self._runner.drain_poisoned(queue)
            self._runner.advance(queue)
