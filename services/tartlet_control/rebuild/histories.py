"""What a runtime remembers of a program: the records that it sent to control, and those that control sent to it."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from tartlet_common.abi import RECORD_BYTES, RECORD_STRUCT, Op, Priority, Record
from tartlet_common.errors.base import TartletError
from tartlet_common.errors.registry import InvalidArgument, MalformedSubmission, UnknownOperation
from tartlet_control.calls.base import words
from tartlet_control.tables.outbox import CANCELLED, FAILURE, RESULT, SKIPPED
from tartlet_control.tables.programs import Command, CommandQueue

_LENGTH: Final = struct.Struct("<II")
Sent = tuple[Record, memoryview]
"""A record and its own bytes of payload."""


@dataclass(slots=True)
class Told:
    """What control has told a program about one command."""

    value: Record | None = None
    """The answer to a command that ended well."""
    skipped: bool = False
    cancelled: bool = False
    refused: bool = False
    """Whether an error answered the command."""
    named: TartletError | None = None
    """The error with which the command failed as the first one of its queue."""

    @property
    def answered(self) -> bool:
        """Whether a program that awaits the command has its answer."""
        return self.value is not None or self.skipped or self.cancelled or self.refused


@dataclass(slots=True)
class Item:
    """One record of a program, and what it is known to have come to."""

    at: int
    """Its place in the order in which the program submitted its records."""
    record: Record
    payload: memoryview
    told: Told
    command: Command | None = None
    """The command of a queue; None for an operation that acts on arrival."""
    source: CommandQueue | None = None
    """The queue of a `table`'s source, if it is another queue than the command's own."""
    dropped: bool = False
    """Whether a `cancel` has dropped the command."""
    noted: bool = False
    """Whether a call on a grammar is known to have had its effect."""
    freed: Command | None = None
    """What a `dealloc` that failed has freed, as a command."""


NOTHING: Final = Told()


@dataclass(slots=True)
class Answers:
    """What a program was told, by ticket."""

    by_ticket: dict[int, Told] = field(default_factory=dict)

    def of(self, ticket: int) -> Told:
        """Return what the program was told about a ticket."""
        return self.by_ticket.get(ticket, NOTHING)


def answers_of(records: Iterable[Sent]) -> Answers:
    """Sort control's records by the ticket that they are about."""
    answers = Answers()
    for record, payload in records:
        told = answers.by_ticket.setdefault(record.ticket, Told())
        if record.op == RESULT:
            told.value = record
        elif record.op == SKIPPED:
            told.skipped = True
        elif record.op == CANCELLED:
            told.cancelled = True
        elif record.op == FAILURE and record.flags & 1:
            told.refused = True
        elif record.op == FAILURE:
            told.named = TartletError.from_wire(record.a, bytes(payload))
    return answers


def unpack(data: bytes) -> Iterator[Sent]:
    """Yield the records of chunks: of each the length of its records and of its payload (u32), then both.

    Raises:
        MalformedSubmission: the lengths don't fit.
    """
    view, at = memoryview(data), 0
    while at < len(view):
        if at + _LENGTH.size > len(view):
            raise MalformedSubmission(detail="a program's history ends in the middle of a chunk")
        of_records, of_payload = _LENGTH.unpack_from(view, at)
        at += _LENGTH.size
        rows, payload = view[at : at + of_records], view[at + of_records : at + of_records + of_payload]
        at += of_records + of_payload
        if at > len(view) or of_records % RECORD_BYTES:
            raise MalformedSubmission(detail="a chunk of a program's history doesn't fit its length")
        for record in map(Record._make, RECORD_STRUCT.iter_unpack(rows)):
            end = record.offset + record.length
            if end > of_payload:
                raise MalformedSubmission(detail=f"record {record.ticket} of a history points outside its payload")
            yield record, payload[record.offset : end]


def source_of(record: Record, payload: memoryview) -> int | None:
    """Return the table that a `table` names as its source; None for the table itself, and for other records."""
    if record.op != Op.TABLE or len(payload) != 4:
        return None
    [source] = words(payload)
    return source


def is_wrong_priority(record: Record) -> bool:
    """Return whether a record sets a priority that doesn't exist, and so takes its turn in its queue and fails."""
    return record.op == Op.SET_QUEUE_PRIORITY and record.a not in Priority.__members__.values()


def fails_in_queue(item: Item) -> TartletError | None:
    """Return with what error a call that takes no turn has failed in its queue, or will; None if it doesn't."""
    record, named = item.record, item.told.named
    if isinstance(named, InvalidArgument | UnknownOperation):
        return named
    if is_wrong_priority(record):
        return InvalidArgument(argument="priority", detail=f"{record.a} is none")
    return None
