"""Calls that order a queue: `synchronize` and `reset`. A record that can't be parsed takes its turn here too."""

from __future__ import annotations

from typing import Final

from tartlet_common.abi import Op, Record
from tartlet_common.errors.base import TartletError
from tartlet_control.calls.base import ControlCall
from tartlet_control.tables.programs import Command, CommandQueue


class Synchronize(Command):
    """Is answered when all earlier commands of the queue have ended."""

    __slots__ = ()


class Reset(Command):
    """Ends the poisoning of the queue. It takes its turn, because it must not overtake the failure before it."""

    __slots__ = ()
    survives_cancel = True


class Barrier(Command):
    """Lets the commands behind it wait for the first `turn` commands of control that a program executes again."""

    __slots__ = ("turn",)
    survives_cancel = True

    def __init__(self, queue: CommandQueue, arrived: float, turn: int) -> None:
        super().__init__(queue, Record(0, 0, 0, queue.id, 0, 0, 0, 0, 0), arrived)
        self.turn = turn


class Faulty(Command):
    """Stands for a record that is no valid command: it fails when its turn comes, as any other command would."""

    __slots__ = ("error",)

    def __init__(self, queue: CommandQueue, record: Record, arrived: float, error: TartletError) -> None:
        super().__init__(queue, record, arrived)
        self.error = error


def parse_synchronize(queue: CommandQueue, record: Record, payload: memoryview, arrived: float) -> Command:
    """Parse `synchronize`, which has no arguments."""
    return Synchronize(queue, record, arrived)


def parse_reset(queue: CommandQueue, record: Record, payload: memoryview, arrived: float) -> Command:
    """Parse `reset`, which has no arguments."""
    return Reset(queue, record, arrived)


CONTROL_CALLS: Final = (ControlCall(Op.SYNCHRONIZE, parse_synchronize), ControlCall(Op.RESET, parse_reset))
