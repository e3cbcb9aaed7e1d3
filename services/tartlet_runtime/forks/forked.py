"""A new program that begins as a recorded run did, and goes on live behind one of that run's deliveries.

Its guest is told what the recorded one was told, and must give the same commands up to there. These aren't executed.
Control gets them, with the recorded answers, as the history of a program that another control had
(`tartlet_control.recovery`), and computes what the program's contexts held then. So they hold the tokens that were
recorded, and nothing that left the recorded run leaves again.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Final

from tartlet_common.abi import Event, Op, Record, decode
from tartlet_common.errors.registry import ControlLost, Diverged, NotForkable, TartletError, UnknownModel
from tartlet_runtime.abi.commands import commands_of
from tartlet_runtime.abi.guest import Delivery
from tartlet_runtime.abi.submission import parse
from tartlet_runtime.forks.cutting import Past
from tartlet_runtime.journal.records import CommandDigest
from tartlet_runtime.program.program import MakeGuest, Program
from tartlet_runtime.program.recovered import RecoveredProgram
from tartlet_runtime.program.rerun import CHILD_OPS
from tartlet_runtime.program.spans import ProgramSpan
from tartlet_runtime.program.spec import ProgramSpec
from tartlet_runtime.program.world import World

_SHOWN: Final = 3  # commands in an error
_SAME: Final = ("name", "page_size", "vocab_size")


class ForkedProgram(RecoveredProgram):
    """A program whose past is a recorded run's."""

    adopts = False

    def __init__(
        self,
        spec: ProgramSpec,
        handle: int,
        world: World[Program],
        make_guest: MakeGuest,
        asked_s: float,
        past: Past,
        span: ProgramSpan | None = None,
    ) -> None:
        """Begin with a past.

        Raises:
            MemoryBudgetExceeded: the process has no memory for messages that the guest has not taken.
        """
        rerun = past.rerun(world.clock.unix_ns())
        super().__init__(spec, handle, world, make_guest, past.header.start_ns, rerun, span, whole=True)
        self.asked_s, self.begins_with = asked_s, past.records
        self.accepted = False
        self._commands = CommandDigest()
        self._last = b""  # submission
        self._told = 0  # deliveries
        self._models: set[int] = set()  # tickets of questions for models
        self._is_restored = True  # or nothing was to be restored

    def on_submit(self, data: bytes) -> None:
        """Take commands; of the past ones, only output is executed."""
        if self._is_past:
            self._commands.add(data)
            self._last = data
            self._models.update(record.ticket for record in parse(data).local if record.op == Op.GET_MODEL)
            super().on_submit(data)
            self._drop_output()
        else:
            super().on_submit(data)

    def _drop_output(self) -> None:
        """Drop output of the past that nobody can read in time: clients come when the fork goes on live."""
        log = self.output.log
        if log.unread_bytes > log.limit_bytes // 2:
            self.output.read_to(log.end)

    def _remembered(self) -> Delivery | None:
        deliveries = self._rerun.deliveries
        if deliveries and deliveries[0].digest != self._commands.value():
            told = f"the commands aren't those of the recorded run; {self._where()}"
            raise Diverged(wait=self._told + 1, detail=told)
        if deliveries and self._models:
            self._check_models(deliveries[0].delivery)
        delivery = super()._remembered()
        self._told += delivery is not None
        return delivery

    def _remember(self, payloads: bytes, record: Record, a: int, b: int, answer: bytes) -> None:
        if record.op in CHILD_OPS:
            self.children.remember(payloads, record, a, b, answer, is_foreign=True)
        else:
            super()._remember(payloads, record, a, b, answer)

    def _matches(self, digest: bytes) -> bool:
        return True  # `_remembered` has compared the commands, and says more

    def _where(self) -> str:
        last = [str(command) for command in commands_of(self._last)][-_SHOWN:] if self._last else []
        return f"the last ones are {', then '.join(last)}" if last else "there are none"

    def _check_models(self, delivery: bytes) -> None:
        """Compare the models that the recorded run was told with those of the same numbers here.

        Raises:
            NotForkable: they are others.
        """
        batch = decode(delivery)
        for record in map(Record._make, batch.records.tolist()):
            if record.ticket in self._models and record.op == Event.RESULT:
                self._models.discard(record.ticket)
                then = json.loads(batch.payload[record.offset : record.offset + record.length])
                try:
                    now = json.loads(self._world.ops.model_info(then["index"], self.reach))
                except UnknownModel as e:
                    told = f"it used the model {then['name']!r}, which is not here; available: {e.fields['available']}"
                    raise NotForkable(why=told) from e
                if any(then[name] != now[name] for name in _SAME):
                    told = f"model number {then['index']} was {then['name']!r}, and is {now['name']!r} here"
                    raise NotForkable(why=told)

    def _begun(self) -> None:
        """No-op: the launch is answered, and the journal stored, where the fork goes on live."""

    def _live(self, *, waits: bool) -> None:
        if self.history.lost:
            raise NotForkable(why=self.history.lost)
        if self.children.left:
            raise NotForkable(why="programs that it has started had not ended, and they belong to the recorded run")
        super()._live(waits=waits)
        self.output.awaits_reader = False

    def _tell_history(self) -> None:
        if self.is_whole:
            self.is_whole = False
            super()._begun()
            if self.history and not self.history.lost:
                self.has_engine_state, self._is_restored = True, False
                self.leave(partial(self._world.link.remember, self))

    def intake(self, count: int, records: bytes, payload: bytes) -> None:
        """Take records from control, which has made the program's state."""
        self._is_restored = True
        super().intake(count, records, payload)

    def end(self, error: TartletError | None) -> None:
        """End; before control has made the program's state, because that can't be made."""
        if isinstance(error, ControlLost) and not self._is_restored:
            error = NotForkable(why=str(error.fields["why"]))
        super().end(error)

    def _end(self, error: TartletError | None, result: str) -> None:
        super()._end(error, result)
        self.tell_starters(error, "")  # it has never gone on


def begun(
    past: Past | None,
    spec: ProgramSpec,
    handle: int,
    world: World[Program],
    make_guest: MakeGuest,
    asked_s: float,
    span: ProgramSpan | None,
) -> Program:
    """Return a new program, which begins with a past if there is one."""
    if past is None:
        return Program(spec, handle, world, make_guest, asked_s, span)
    return ForkedProgram(spec, handle, world, make_guest, asked_s, past, span)
