"""What a stored journal tells a guest that begins again: its deliveries, clients' messages, and its end. Pure."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tartlet_common.abi import HEADER_BYTES, HEADER_STRUCT, RECORD_BYTES, RECORD_STRUCT, Event, Flag, Op, Record
from tartlet_common.errors.registry import TartletError
from tartlet_runtime.journal.records import JournalRecord, Kind, unpack_keys

_FAILURE = int(Event.FAILURE)
_TIMER = int(Event.TIMER)
_AWAIT = int(Flag.AWAIT)
_OUTPUTS = frozenset({int(Op.LOG), int(Op.SEND)})
CHILD_OPS = frozenset({int(Op.SPAWN), int(Op.CHILD_NEXT)})
"""Commands whose answers tell of children."""
_FETCHES = frozenset({int(Op.HTTP_REQUEST), int(Op.HTTP_READ)}) | CHILD_OPS
_RESULT = int(Event.RESULT)


class Told(NamedTuple):
    """The answer to a command, and where it stands."""

    event: int
    delivery: bytes
    at: int  # among the delivery's records

    def result(self) -> tuple[int, int, bytes]:
        """Return a, b and the payload of a RESULT."""
        count = HEADER_STRUCT.unpack_from(self.delivery)[2]
        row = Record._make(RECORD_STRUCT.unpack_from(self.delivery, HEADER_BYTES + self.at * RECORD_BYTES))
        start = HEADER_BYTES + count * RECORD_BYTES + row.offset
        return row.a, row.b, self.delivery[start : start + row.length]


@dataclass(slots=True)
class Rerun:
    """The past of a program, consumed as its guest is told it again."""

    deliveries: deque[JournalRecord]
    messages: list[bytes] = field(default_factory=list)
    """Messages of clients that were accepted, in order; those that the guest has taken are among them."""
    keys: list[bytes] = field(default_factory=list)
    """Keys of their sendings."""
    end: tuple[TartletError | None, str] | None = None
    """How the program has ended, with its result: it never lives again."""
    heard: int = 0
    """How many of control's records the guest was given."""
    read_to: int = 0
    """The offset up to which clients have read the output."""
    clock_ns: int = 0
    """The guest's time at the last record, since its start."""
    lag_ns: int = 0
    """How far the guest's time is behind the wall clock."""
    waited_ns: int = 0
    """The same at the last delivery."""
    answered: dict[int, list[Told]] = field(default_factory=dict)
    """What answered each ticket, in order; the runtime's own answers are consumed."""

    @classmethod
    def of(cls, records: Iterable[JournalRecord], lag_ns: int = 0) -> Rerun:
        """Read a journal's records. The guest's time is `lag_ns` behind the wall clock."""
        rerun = cls(deque(), lag_ns=lag_ns)
        for record in records:
            rerun.clock_ns = max(rerun.clock_ns, record.clock_ns)
            if record.kind == Kind.DELIVERY:
                rerun._deliver(record)
            elif record.kind == Kind.MESSAGE:
                key_end = 1 + record.delivery[0]
                rerun.keys.append(record.delivery[1:key_end])
                rerun.messages.append(record.delivery[key_end:])
            elif record.kind == Kind.KEYS:
                rerun.keys += unpack_keys(record.delivery)
            elif record.kind == Kind.END and rerun.end is None:
                rerun.end = read_end(record.delivery)
        return rerun

    def _deliver(self, record: JournalRecord) -> None:
        self.deliveries.append(record)
        self.heard, self.read_to = record.from_control, max(self.read_to, record.read_to)
        self.waited_ns = record.clock_ns
        for at, (op, flags, ticket, *_) in enumerate(RECORD_STRUCT.iter_unpack(rows_of(record.delivery))):
            if op != _TIMER and (op != _FAILURE or flags & _AWAIT):
                self.answered.setdefault(ticket, []).append(Told(op, record.delivery, at))

    def left_of(
        self, local: list[Record], fetched: Callable[[Record, int, int, bytes], None] | None = None
    ) -> tuple[list[Record], int]:
        """Return which of the guest's commands for the runtime are still to be executed, and how many `receive` aren't.

        Commands whose answer the journal has are left out, except that output is written again.

        Args:
            local: the commands.
            fetched: called with each command for an HTTP request or a child that has a result, and with a, b and the
                payload.
        """
        left, received = [], 0
        for record in local:
            told = self._answer_to(record) if record.flags & _AWAIT else None
            if told is None:
                left.append(record)
            elif record.op in _OUTPUTS and told.event != _FAILURE:
                left.append(record._replace(flags=record.flags & ~_AWAIT))
            elif record.op == Op.RECEIVE and told.event != _FAILURE:
                received += 1
            elif record.op in _FETCHES and told.event == _RESULT and fetched is not None:
                fetched(record, *told.result())
        return left, received

    def _answer_to(self, record: Record) -> Told | None:
        answers = self.answered.get(record.ticket)
        if not answers:
            return None
        told = answers.pop(0)
        if not answers:
            del self.answered[record.ticket]
        return told


def rows_of(delivery: bytes) -> bytes:
    """Return the packed records of a delivery."""
    count = HEADER_STRUCT.unpack_from(delivery)[2]
    return delivery[HEADER_BYTES : HEADER_BYTES + count * RECORD_BYTES]


def read_end(data: bytes) -> tuple[TartletError | None, str]:
    """Return the error in which a program has ended, or None and its result, from the record of its end."""
    told = json.loads(data)
    if "error" in told:
        return TartletError.from_wire(int(told["error"]), told["fields"]), ""
    return None, str(told["result"])
