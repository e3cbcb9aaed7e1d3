"""Gives programs the state that they had in a control that has died, from what their runtimes remember of them."""

from __future__ import annotations

from collections.abc import Iterable

from tartlet_common.abi import Op, Record
from tartlet_common.errors.base import TartletError
from tartlet_common.errors.registry import ControlLost
from tartlet_control.calls.tables import Share
from tartlet_control.core.core import Core
from tartlet_control.rebuild.fold import Folded, fold
from tartlet_control.rebuild.histories import Sent
from tartlet_control.tables.outbox import FAILURE
from tartlet_control.tables.page_tables import PageTable
from tartlet_control.tables.programs import Place, ProgramState, Recovery, RuntimeSession


class Restorer:
    """Folds histories, and hands the places to the rebuilder as if their engines had died."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._models = core.models
        self._lifecycle = core.lifecycle
        self._intake = core.intake
        self._rebuilder = core.rebuilder

    def on_history(
        self, session: RuntimeSession, handle: int, commands: Iterable[Sent], answers: Iterable[Sent]
    ) -> None:
        """Take what a runtime remembers of a program that it has announced: all that it sent and was told, in order."""
        program = session.programs.get(handle)
        if program is not None and program.live and not program.commands:
            self._restore(program, commands, answers, self._core.clock.now())

    def _restore(self, program: ProgramState, commands: Iterable[Sent], answers: Iterable[Sent], now: float) -> None:
        """Let a program go on from where its history ends. If it can't, it ends in ControlLost."""
        try:
            folded = fold(program, commands, answers, self._models.at, now=now)
        except TartletError as e:
            self._lifecycle.kill(program, ControlLost(why=f"its history makes no sense: {e}"))
            return
        obstacle = self._obstacle(program, folded)
        if obstacle:
            self._lifecycle.kill(program, ControlLost(why=f"what {obstacle} has made can't be computed again"))
            return
        for place in program.places.values():
            self._suspend(place, now)
        self._answer(program, folded)
        taken = program.commands
        for number, topic in folded.subscriptions.items():
            self._submit(program, Record(Op.SUBSCRIBE, 0, 0, 0, number, 0, 0, 0, len(topic)), memoryview(topic), now)
        for record, payload in folded.again:
            self._submit(program, record, payload, now)
        program.commands = taken

    @staticmethod
    def _obstacle(program: ProgramState, folded: Folded) -> str:
        if folded.grammars:
            return "grammar"
        return next((call for place in program.places.values() if (call := place.book.obstacle())), "")

    def _submit(self, program: ProgramState, record: Record, payload: memoryview, now: float) -> None:
        if program.live:
            self._intake.submit(program, record, payload, now)

    def _suspend(self, place: Place, now: float) -> None:
        """Queue again what isn't known to have ended, and let the place wait for an engine if it had one."""
        book, program = place.book, place.program
        if not place.log and not (book.tables or book.embeds or book.slots or book.pages):
            return
        program.in_flight += sum(c.outcome is None for c in place.log if type(c) is not Share)
        for number, line in book.tables.items():
            place.tables[number] = PageTable(line.queue_id)
        self._rebuilder.take_back(place, Recovery(place.model.spec, ControlLost(why="no engine has come"), now))

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
