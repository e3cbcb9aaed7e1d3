"""What a journal tells a guest that begins again."""

from __future__ import annotations

import json

from tartlet_common.abi import RECORD_STRUCT, Event, Flag, Op, Record
from tartlet_common.errors.registry import ProgramKilled
from tartlet_runtime.journal.records import JournalRecord, Kind, pack_keys
from tartlet_runtime.program.inbox import TIMER_DELIVERY, pack_delivery
from tartlet_runtime.program.rerun import Rerun

AWAIT = int(Flag.AWAIT)


def told(*answers: tuple[Event, int], at_ns: int = 1, heard: int = 0, read_to: int = 0) -> JournalRecord:
    """A delivery of answers to tickets."""
    rows = b"".join(RECORD_STRUCT.pack(event, AWAIT, ticket, 0, 0, 0, 0, 0, 0) for event, ticket in answers)
    return JournalRecord(at_ns, b"digest00", pack_delivery(len(answers), rows, b""), heard, read_to)


def asked(op: Op, ticket: int, flags: int = AWAIT) -> Record:
    return Record(int(op), flags, ticket, 0, 0, 0, 0, 0, 0)


def test_answers_that_the_guest_had_are_not_worked_out_again_but_output_is_put_out_again() -> None:
    failed, sent = (Event.FAILURE, 5), (Event.RESULT, 4)
    rerun = Rerun.of([told((Event.RESULT, 1), (Event.RESULT, 2)), told(sent, failed)])
    local = [
        asked(Op.TOKENIZE, 1),
        asked(Op.RECEIVE, 2),
        asked(Op.LOG, 3, flags=0),
        asked(Op.SEND, 4),
        asked(Op.SEND, 5),  # it was refused
        asked(Op.TOKENIZE, 6),  # its answer was lost
        asked(Op.RECEIVE, 7),
    ]
    left, received = rerun.left_of(local)
    assert [(record.op, record.ticket) for record in left] == [
        (Op.LOG, 3),
        (Op.SEND, 4),
        (Op.TOKENIZE, 6),
        (Op.RECEIVE, 7),
    ]
    assert not left[1].flags & AWAIT, "it was answered"
    assert received == 1
    again, _ = rerun.left_of([asked(Op.TOKENIZE, 1)])
    assert len(again) == 1, "a ticket that is used again is answered again"


def test_what_was_taken_read_and_heard_is_that_of_the_last_records() -> None:
    rerun = Rerun.of(
        [
            told((Event.RESULT, 1), at_ns=10, heard=3, read_to=2),
            JournalRecord(0, b"", pack_keys([b"before", b"long" * 16]), kind=Kind.KEYS),
            JournalRecord(15, b"", b"\2k1hello", kind=Kind.MESSAGE),
            JournalRecord(20, b"digest00", TIMER_DELIVERY, 5, 1),
            JournalRecord(30, b"", b"\0plain", kind=Kind.MESSAGE),
        ]
    )
    assert (rerun.heard, rerun.read_to, rerun.waited_ns, rerun.clock_ns) == (5, 2, 20, 30)
    assert (rerun.messages, rerun.keys) == ([b"hello", b"plain"], [b"before", b"long" * 16, b"k1", b""])
    assert len(rerun.deliveries) == 2
    assert rerun.end is None
    assert 0 not in rerun.answered, "a timer answers nobody"


def test_the_first_end_counts() -> None:
    killed = ProgramKilled(reason="enough")
    first = {"error": killed.number, "fields": killed.to_json().decode()}
    ends = [JournalRecord(1, b"", json.dumps(end).encode(), kind=Kind.END) for end in (first, {"result": "late"})]
    end = Rerun.of(ends).end
    assert end is not None
    assert isinstance(end[0], ProgramKilled)
    assert end[0].fields["reason"] == "enough"
    assert Rerun.of(ends[1:]).end == (None, "late")
