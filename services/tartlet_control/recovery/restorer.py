"""Gives programs the state that they had in a control that has died, from what their runtimes remember of them."""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from google.protobuf.message import DecodeError

from tartlet_common.abi import Record
from tartlet_common.engine.pools import Reach
from tartlet_common.engine.spec import EngineSpec
from tartlet_common.errors.base import TartletError
from tartlet_common.errors.registry import ControlLost, MalformedSubmission
from tartlet_control.calls.tables import Share
from tartlet_control.core.core import Core
from tartlet_control.rebuild.fold import Folded, fold
from tartlet_control.rebuild.histories import Sent, unpack
from tartlet_control.tables.answers import Answer
from tartlet_control.tables.outbox import FAILURE
from tartlet_control.tables.page_tables import PageTable
from tartlet_control.tables.programs import Place, ProgramState, Recovery, RuntimeSession
from tartlet_protos import control_pb2

log = logging.getLogger("tartlet.control")

MAX_HISTORY_BYTES: Final = 112 << 20
"""Bytes of a program's history, of which control makes its state again."""
ENGINES_S: Final = 20.0
"""How long a history waits for the first engine of its program's pool or model: engines may return after runtimes."""


class Restorer:
    """Folds histories, and hands the places to the rebuilder as if their engines had died.

    To fold a long history takes tens of milliseconds. So histories wait, and whoever serves a runtime folds one of them
    a turn of the event loop. Frames behind a history are not taken before it is folded.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._models = core.models
        self._lifecycle = core.lifecycle
        self._intake = core.intake
        self._rebuilder = core.rebuilder
        self._parts: dict[tuple[RuntimeSession, int], list[bytes]] = {}
        self._whole: dict[RuntimeSession, deque[tuple[ProgramState, bytes]]] = defaultdict(deque)
        self._waiting_since: dict[RuntimeSession, float] = {}
        self._lacking: dict[tuple[str, Reach], bool] = {}  # thousands of programs may wait for the engines of one pool

    def on_models(self, session: RuntimeSession, models: Iterable[tuple[int, EngineSpec, str | None]]) -> None:
        """Take the models as a runtime's programs number them: number, spec and owner.

        Raises:
            Overloaded: there are too many.
        """
        for number, spec, owner in models:
            session.models.note(theirs=number, ours=self._models.expect(spec, owner).index)

    def on_part(self, session: RuntimeSession, handle: int, data: bytes, *, more: bool) -> None:
        """Take a part of what a runtime remembers of a program that it has announced."""
        program = session.programs.get(handle)
        if program is None or not program.live or program.commands:
            self._parts.pop((session, handle), None)
            return
        parts = self._parts.setdefault((session, handle), [])
        parts.append(data)
        if sum(map(len, parts)) > MAX_HISTORY_BYTES:
            del self._parts[session, handle]
            self._lifecycle.kill(program, ControlLost(why=f"its history is longer than {MAX_HISTORY_BYTES} bytes"))
        elif not more:
            del self._parts[session, handle]
            self._whole[session].append((program, b"".join(parts)))

    def waits(self, session: RuntimeSession) -> bool:
        """Return whether `fold_next` has something to do for a runtime."""
        return session in self._whole

    def fold_next(self, session: RuntimeSession) -> bool:
        """Let the next program of a runtime go on whose history is complete; False: its engines aren't there yet."""
        waiting = self._whole[session]
        self._lacking.clear()
        ready = (i for i, (program, _) in enumerate(waiting) if not self._lacks_engines(session, program))
        if (first := next(ready, None)) is None:
            return False
        waiting.rotate(-first)
        program, data = waiting.popleft()
        if not waiting:
            del self._whole[session]
        if program.session is session and program.live and not program.commands:
            self._read(program, data)
        return True

    def _lacks_engines(self, session: RuntimeSession, program: ProgramState) -> bool:
        """Whether to wait until an engine says which model a program of this pool, or with this model's name, has.

        All programs of a runtime wait together, so that many of them hold it up no longer than one.
        """
        if program.session is not session or not program.live:
            return False
        if program.default_model is not None or not (program.asked_model or program.reach.pool):
            return False
        asked = (program.asked_model, program.reach)
        if asked not in self._lacking:
            self._lacking[asked] = self._waits_for_engines(session, *asked)
        return self._lacking[asked]

    def _waits_for_engines(self, session: RuntimeSession, model: str, reach: Reach) -> bool:
        try:
            self._models.named(model, reach)
        except TartletError:
            now = self._core.clock.now()
            return now < self._waiting_since.setdefault(session, now) + ENGINES_S
        return False

    def _read(self, program: ProgramState, data: bytes) -> None:
        try:
            history = control_pb2.ProgramHistory.FromString(data)
        except DecodeError:
            self._lifecycle.kill(program, ControlLost(why="its history can't be read"))
            return
        if history.lost:
            self._lifecycle.kill(program, ControlLost(why=history.lost))
            return
        try:
            answers, commands = list(unpack(history.answers)), list(unpack(history.commands))
        except MalformedSubmission as e:  # costs this program, not the link with all programs of the runtime
            self._lifecycle.kill(program, ControlLost(why=f"its history makes no sense: {e}"))
            return
        self._keep_unstored(program, answers, history.told)
        self.restore(program, commands, answers)

    @staticmethod
    def _keep_unstored(program: ProgramState, answers: list[Sent], told: int) -> None:
        """Keep the records that the program was told and that its journal hasn't, which are the last ones."""
        kept = program.answers
        if kept is None or told <= kept.stored:
            return
        for record, payload in answers[kept.stored - told :]:
            event, flags, ticket, queue, a, b, c, _, _ = record
            kept.add(Answer(event, flags, ticket, queue, a, b, c, bytes(payload)))

    def forget(self, session: RuntimeSession) -> None:
        """Forget what a runtime has sent, because its link begins anew, and what runtimes have sent that are gone."""
        here = set(self._core.sessions.values()) - {session}
        self._waiting_since = {of: since for of, since in self._waiting_since.items() if of in here}
        self._parts = {key: parts for key, parts in self._parts.items() if key[0] in here}
        for gone in self._whole.keys() - here:
            del self._whole[gone]

    def restore(self, program: ProgramState, commands: Sequence[Sent], answers: Sequence[Sent]) -> None:
        """Let a program go on from where its history ends. If it can't, it ends in ControlLost."""
        now = self._core.clock.now()
        program.awaits_history = False
        numbers = program.session.models
        try:
            if program.default_model is None:
                program.default_model = self._models.named(program.asked_model, program.reach)
            folded = fold(program, commands, answers, lambda number: self._models.at(numbers.ours(number)), now=now)
        except TartletError as e:
            self._lifecycle.kill(program, ControlLost(why=f"its history makes no sense: {e}"))
            return
        except Exception:  # a bug costs this program, not the link with all programs of the runtime
            log.exception("program %s: its history can't be folded", program.id)
            self._lifecycle.kill(program, ControlLost(why="its history can't be folded"))
            return
        obstacle = next((call for place in program.places.values() if (call := place.book.obstacle())), "")
        if obstacle:
            self._lifecycle.kill(program, ControlLost(why=f"what {obstacle} has made can't be computed again"))
            return
        for place in program.places.values():
            self._core.adapters.keep(place)
            self._suspend(place, now)
        self._answer(program, folded)
        taken = program.commands
        self._intake.shared.resume(program, folded.subscriptions)
        for record, payload in folded.again:
            self._submit(program, record, payload, now)
        program.commands = taken
        self._lifecycle.on_restored(program, commands, answers)

    def _submit(self, program: ProgramState, record: Record, payload: memoryview, now: float) -> None:
        if program.live:
            self._intake.submit(program, record, payload, now)

    def _suspend(self, place: Place, now: float) -> None:
        """Queue again what isn't known to have ended, and let the place wait for an engine if it had one."""
        book, program = place.book, place.program
        if not place.log and not (book.tables or book.embeds or book.slots or book.pages or place.grammars):
            return
        program.in_flight += sum(c.outcome is None for c in place.log if type(c) is not Share)
        for number, line in book.tables.items():
            place.tables[number] = PageTable(line.queue_id)
        recovery = Recovery(_any_size(place.model.spec), ControlLost(why="no engine has come"), now)
        recovery.home = self._core.placing.homes.get(program.id, {}).get(place.model.spec.model_digest, "")
        self._rebuilder.take_back(place, recovery)

    @staticmethod
    def _answer(program: ProgramState, folded: Folded) -> None:
        """Give the program the answers that it has not got."""
        out, handle = program.session.outbox, program.handle
        for owed in folded.owed:
            if owed.event == FAILURE:
                assert owed.error is not None
                out.fail(handle, owed.ticket, owed.queue, owed.error, answers=True)
            else:
                out.deliver(handle, owed.event, owed.awaited, owed.ticket, owed.queue, owed.a)


def _any_size(spec: EngineSpec) -> EngineSpec:
    """Return a spec without pools: runtimes know how much all engines have, not how much the program's engine had."""
    return replace(spec, num_pages=1, num_embeds=1, num_slots=1)
