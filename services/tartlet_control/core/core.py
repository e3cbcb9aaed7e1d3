"""The state machine of control: frames and results in, frames and steps out, without I/O.

The servers call `on_*`, then `pump`, then take what waits in outboxes and in `EngineState.outgoing`. Everything runs on
one thread: a call runs to its end before the next begins. The only clock is the injected one.
"""

from __future__ import annotations

import logging
import struct
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from tartlet_common.abi import MAX_SUBMISSION_BYTES, RECORD_BYTES, RECORD_STRUCT, Record
from tartlet_common.clock import Clock
from tartlet_common.config.settings import ControlSettings
from tartlet_common.engine.pools import EVERYONES_HOME, Home
from tartlet_common.engine.spec import EngineSpec
from tartlet_common.engine.step import TABLES_SINCE, StepResult
from tartlet_common.errors.registry import (
    EngineFailure,
    MalformedSubmission,
    TartletError,
    UnknownResource,
    WorkerLost,
)
from tartlet_common.rpc.resume import epoch_of
from tartlet_control.batching.batcher import Batcher
from tartlet_control.batching.gather import Limits
from tartlet_control.batching.policies import policy_of
from tartlet_control.core.dispatcher import Dispatcher
from tartlet_control.core.intake import CommandIntake
from tartlet_control.core.lifecycle import Lifecycle
from tartlet_control.core.moves import Moves
from tartlet_control.core.places import backlog
from tartlet_control.core.places.adapters import Adapters
from tartlet_control.core.places.audit import audit
from tartlet_control.core.places.awaiting import refresh_unplaced, wait_for_engine
from tartlet_control.core.places.memory import RETRY_S, Memory
from tartlet_control.core.places.placing import Placing
from tartlet_control.core.pool_orders import PoolOrders
from tartlet_control.core.queue_runner import QueueRunner
from tartlet_control.core.rebuilder import Rebuilder
from tartlet_control.core.sessions import Runtimes
from tartlet_control.core.settler import Settler
from tartlet_control.order.shares import Shares, weights_of
from tartlet_control.sharing.name_ops import NameOps
from tartlet_control.sharing.names import Names
from tartlet_control.sharing.reuse import held_tokens
from tartlet_control.tables.engines import EngineState, engine_id_of
from tartlet_control.tables.ledger import LedgerFault
from tartlet_control.tables.models import Models
from tartlet_control.tables.programs import ProgramState, RuntimeSession

log = logging.getLogger("tartlet.control")

_HANDLE: Final = struct.Struct("<I")
_CHECK_EVERY_S: Final = 5.0
_RECOUNT_EVERY: Final = 24
"""All references are recounted at each check of this number, because a recount holds up the loop for milliseconds."""


class Core:
    """Holds all state of control. A ledger that doesn't balance raises if `strict` (in tests), else it is logged."""

    def __init__(self, settings: ControlSettings, clock: Clock, *, strict: bool = False) -> None:
        self.settings = settings
        self.clock = clock
        self.incarnation = uuid.uuid4().hex
        self.epoch = epoch_of(clock.unix_ns())
        self.models = Models()
        self.engines: dict[str, EngineState] = {}
        self.lifecycle = Lifecycle(
            self.models,
            max_programs=settings.max_programs,
            page_limit=settings.program_pages,
            command_limit=settings.program_commands,
            started_s=clock.now(),
            weights=weights_of(settings.tenant_shares),
            session_idle_s=settings.session_idle_s,
        )
        self.runtimes = runtimes = Runtimes(self.lifecycle, settings, clock)
        self.sessions = runtimes.sessions
        self.on_runtime, self.on_runtime_gone = runtimes.on_runtime, runtimes.on_runtime_gone
        self.lose_runtime, self.takeovers = runtimes.lose_runtime, runtimes.takeovers
        self.on_journals, self.on_stopping = runtimes.on_journals, runtimes.on_stopping
        self.on_stored = runtimes.on_stored
        self.on_kept, self.on_start, self.on_end = runtimes.on_kept, runtimes.on_start, runtimes.on_end
        self.batchers = self.lifecycle.batchers
        self._policy = policy_of(settings)
        self.orders = PoolOrders(settings, self.lifecycle.history)
        self._weights = weights_of(settings.tenant_shares)
        self.placing = Placing(self.lifecycle, self.orders)
        self.adapters = Adapters(self.lifecycle, self._models_changed)
        self.placing.held = lambda beginning: held_tokens(self.engines.values(), beginning)
        self.memory = Memory(self.lifecycle, clock, self._weights)
        self.runner = QueueRunner(self.lifecycle, self.placing, self.memory)
        self.takeovers.on_moved = self.runner.hold
        self.runner.caches = self.lifecycle.caches = settings.prefix_cache
        self._pins: dict[bytes, int] = {}
        self.names = self.lifecycle.names = Names(tenant_tokens=settings.name_tokens, pins=self._pins)
        self.runner.names = NameOps(self.names, clock.unix_ns, settings.name_ttl_s)
        self.intake = CommandIntake(self.models, self.lifecycle, self.runner)
        self.dispatcher = Dispatcher(self.runner)
        self.settler = Settler(self.runner, self.lifecycle)
        self.rebuilder = self.memory.suspender = Rebuilder(self.lifecycle, self.runner, settings, self.memory)
        self.runner.wait_for_engine = partial(wait_for_engine, self.rebuilder)
        self.moves = Moves(self.lifecycle, self.rebuilder, self.placing)
        self.settler.settled_on = self.rebuilder.trials.settled
        self.leaks = 0
        self.on_leak: Callable[[EngineState, LedgerFault], None] | None = None
        self.on_resumed: Callable[[str], None] | None = None
        """Called with "runtime" or "worker" when a link continues on a new connection."""
        self._strict = strict
        self.engines_version = 0
        """Grows whenever an engine comes, goes or changes its state."""
        self._connections = self._checks = 0
        self._checked_s = clock.now()

    # ---- programs ---------------------------------------------------------------------------------------------------

    def on_commands(self, session: RuntimeSession, handles: bytes, records: bytes, payload: bytes) -> None:
        """Take the commands of a runtime's programs in one tick, in columns as in control.proto.

        Raises:
            MalformedSubmission: the columns don't fit together. A wrong record fails alone, without this error.
        """
        count = len(handles) // 4
        if len(handles) % 4 or len(records) != count * RECORD_BYTES or len(payload) > MAX_SUBMISSION_BYTES:
            detail = f"columns of {len(handles)}, {len(records)} and {len(payload)} bytes"
            raise MalformedSubmission(detail=detail)
        now = self.clock.now()
        programs, submit = session.programs, self.intake.submit
        view, size = memoryview(payload), len(payload)
        last, program = -1, None
        rows = map(Record._make, RECORD_STRUCT.iter_unpack(records))
        for (handle,), record in zip(_HANDLE.iter_unpack(handles), rows, strict=True):
            if handle != last:
                last, program = handle, programs.get(handle)
            if program is None or not program.live:
                continue  # it was killed, or has ended, while this was under way
            end = record.offset + record.length
            if end > size:
                self._outside(program, record, size)
                continue
            submit(program, record, view[record.offset : end], now)

    def _outside(self, program: ProgramState, record: Record, size: int) -> None:
        where = f"record {record.ticket} of queue {record.queue}"
        self.lifecycle.kill(program, MalformedSubmission(detail=f"{where} points outside of {size} payload bytes"))

    # ---- engines ------------------------------------------------------------------------------------------------

    def on_engine(
        self,
        name: str,
        incarnation: str,
        spec: EngineSpec,
        home: Home = EVERYONES_HOME,
        protocol: int = TABLES_SINCE,
    ) -> EngineState:
        """Take an engine's Hello. A known engine of the same name and owner is gone then: this one is its successor.

        An owner's engines are known by `OWNER/NAME`, so that no tenant's engine can take the place of another's.

        Raises:
            EngineMismatch: its model is served in too many other forms.
            Overloaded: its owner's engines, or all engines, have too large specs.
        """
        engine_id = engine_id_of(home, name)
        old = self.engines.get(engine_id)
        if old is not None:
            self.on_engine_gone(old)
        model = self.models.join(spec, home)
        self._connections += 1
        # a number of its own for each connection's steps, so that no answer can be taken for another's
        engine = EngineState(
            engine_id, incarnation, spec, model.index, self._connections << 32, home=home, protocol=protocol
        )
        engine.prefixes.pinned = self._pins
        share = max(1, int(self.settings.rebuild_share * spec.max_batch_tokens))
        limits = Limits(spec.max_batch_tokens, spec.max_batch_commands, share)
        self.batchers[engine] = Batcher(
            self._policy, self.settings.steps_in_flight, limits, self.orders.of(home), Shares(self._weights)
        )
        engine.window_s = engine.joined_s = self.clock.now()
        model.engines.append(engine)
        self.engines[engine_id] = engine
        self.adapters.settle(model)
        model = self.models.at(engine.model_index)
        refresh_unplaced(self.lifecycle.programs.values())
        self._models_changed()
        beside = ", and stands by: others serve it in another form" if self.models.stands_by(model) else ""
        pool = f" of pool {home.path}" if home.pool else ""
        log.info("engine %s%s joined with model %s%s", engine_id, pool, spec.model, beside)
        return engine

    def on_engine_gone(self, engine: EngineState, error: TartletError | None = None) -> None:
        """Give an engine up, because its stream has ended or it is broken: end its programs, forget its pages."""
        if self.engines.get(engine.id) is not engine:
            return
        del self.engines[engine.id]
        model = self.models.at(engine.model_index)
        model.engines.remove(engine)
        self.rebuilder.lose(engine, error or WorkerLost(engine=engine.id), self.clock.now())
        self.adapters.settle(model)
        self._models_changed()
        if engine.link is not None:
            engine.link.give_up()
        log.info("engine %s left", engine.id)

    def on_engine_away(self, engine: EngineState) -> None:
        """Note that an engine's connection broke: the engine has `engine_grace_s` to come back."""
        engine.gone_since = self.clock.now()

    def on_result(self, engine: EngineState, result: StepResult) -> None:
        """Take an engine's answer to a step.

        Raises:
            EngineFailure: the answer doesn't fit.
        """
        batcher = self.batchers.get(engine)
        if batcher is None:
            raise EngineFailure(detail=f"answered step {result.number} after it was given up")
        self.settler.settle(engine, batcher, result, self.clock.now())

    def on_grammar(self, engine: EngineState, number: int, error: TartletError | None) -> None:
        """Take an engine's word that a grammar is compiled, or why it can't be."""
        self.runner.grammars.report(self.lifecycle.programs, engine, number, error)

    def set_order(
        self,
        pool: str,
        name: str,
        quanta_s: Sequence[float],
        starved_at: float | None,
        placement: str = "",
        short_tokens: int = 0,
        *,
        preempt: str = "",
        every: int = 0,
    ) -> None:
        """Let a pool's engines follow another order of programs and another placement; "": control's own.

        Raises:
            InvalidArgument, Overloaded: as `PoolOrders.change`.
        """
        stops = preempt, every
        self.orders.change(pool, name, quanta_s, starved_at, self.batchers, placement, short_tokens, stops)
        self.engines_version += 1

    def set_durability(self, pool: str, durability: str) -> None:
        """Give a pool another durability, and tell runtimes; arguments and errors as `PoolOrders.set_durability`."""
        if self.orders.set_durability(pool, durability):
            self._models_changed()

    def cordon(self, engine_id: str, *, drain: bool = False) -> EngineState:
        """Place no new programs on an engine; with `drain`, tell it to go once it has no programs.

        Its programs move to other engines as these have room, if their state can be made again there.

        Raises:
            UnknownResource: no such engine.
        """
        engine = self._engine(engine_id)
        engine.status = "draining" if drain else "cordoned"
        self._models_changed()
        return engine

    def resume(self, engine_id: str) -> None:
        """Place new programs on an engine again.

        Raises:
            UnknownResource: no such engine.
        """
        self._engine(engine_id).status = "ready"
        self._models_changed()

    def _engine(self, engine_id: str) -> EngineState:
        engine = self.engines.get(engine_id)
        if engine is None:
            raise UnknownResource(kind="engine", id=engine_id)
        return engine

    def waiting_s(self, engine: EngineState) -> float:
        """Predict the device time of what waits for an engine or its memory, in seconds; 0 for one that left."""
        batcher = self.batchers.get(engine)
        return backlog.waiting_s(engine, batcher, self.memory.stalled, self.rebuilder.waiting) if batcher else 0.0

    def unused(self, engine: EngineState) -> bool:
        """Return whether an engine has neither programs nor steps in flight."""
        batcher = self.batchers.get(engine)
        return not engine.program_ids and (batcher is None or not batcher.in_flight)

    def _models_changed(self) -> None:
        self.engines_version += 1
        for session in self.sessions.values():
            session.outbox.notices.models_changed = True

    @property
    def idle(self) -> bool:
        """Whether no engine has anything to do, and no program waits for its place on one."""
        return not self.runner.unplaced and all(batcher.idle for batcher in self.batchers.values())

    @property
    def takes_parts(self) -> bool:
        """Whether a step should be formed of a part of a runtime's frame, though the rest follows at once."""
        return any(batcher.takes_parts for batcher in self.batchers.values())

    def hold(self, session: RuntimeSession, *, held: bool) -> None:
        """Dispatch nothing for a runtime that has much unread, or dispatch its programs' commands again."""
        session.held = held
        for program in list(session.programs.values()):
            self.runner.hold(program)

    # ---- between events -----------------------------------------------------------------------------------------

    def pump(self) -> float | None:
        """Send every engine what its batcher wants. Returns when to pump again if nothing happens before."""
        now = self.clock.now()
        look_at: float | None = None
        self.runner.place_waiting()
        self.moves.pump(now)
        if self.rebuilder.busy:
            self.rebuilder.pump(now)
        if self.memory.stalled:
            self.runner.retry()
            if self.rebuilder.leaving:  # what gave way may be free at once
                self.rebuilder.pump(now)
                self.runner.retry()
            look_at = now + RETRY_S
        self.runner.look()
        for engine, batcher in self.batchers.items():
            self.dispatcher.pump(engine, batcher, now)
            if batcher.look_at is not None and (look_at is None or batcher.look_at < look_at):
                look_at = batcher.look_at
        if self.lifecycle.ending:
            self.lifecycle.end_finished()
        return now if self.rebuilder.goes_on else look_at

    def tick(self) -> None:
        """Retry requests that wait, give up runtimes and engines past their grace, check the books of idle engines.

        Call this a few times a second.
        """
        now = self.clock.now()
        self.runtimes.tick(now)
        for engine in list(self.engines.values()):
            if engine.gone_since is not None and now - engine.gone_since >= self.settings.engine_grace_s:
                log.warning("engine %s did not come back", engine.id)
                self.on_engine_gone(engine)
        self.adapters.tick()
        self.rebuilder.expire(now)
        self.lifecycle.accounts.expire(now)
        self.names.expire(self.runner.names.now_s)
        if now - self._checked_s >= _CHECK_EVERY_S:
            self._checked_s = now
            self._checks += 1
            self.check_ledgers(recount=self._checks % _RECOUNT_EVERY == 0)

    def pardon(self, seconds: float) -> None:
        """Don't count some of the last seconds as absence of peers, because control itself stood still."""
        peers: list[RuntimeSession | EngineState] = [*self.sessions.values(), *self.engines.values()]
        for peer in peers:
            if peer.gone_since is not None:
                peer.gone_since += seconds

    def check_ledgers(self, *, recount: bool = True) -> None:
        """Check the pools of idle engines: free + held = total, and programs hold all that is held.

        Raises:
            LedgerFault: they don't balance, and the core is strict.
        """
        for engine in self.engines.values():
            if not self.batchers[engine].idle:
                continue
            places = [p.places[engine.model_index] for p in self.lifecycle.placed_on(engine)]
            for fault in audit(engine, places, recount=recount):
                if self._strict:
                    raise fault
                self.leaks += 1
                log.error("engine %s: %s", engine.id, fault)
                if self.on_leak is not None:
                    self.on_leak(engine, fault)
