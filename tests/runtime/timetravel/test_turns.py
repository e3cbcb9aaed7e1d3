"""What a page of a journal tells of runs that can't be run again, or not to their end."""

from __future__ import annotations

import json
from typing import Any

from tartlet_common.abi import RECORD_STRUCT, Event, Flag, Op
from tartlet_common.errors.registry import OutOfPages
from tartlet_protos import common_pb2
from tartlet_runtime.abi.commands import Command
from tartlet_runtime.journal.records import JournalHeader, JournalRecord, Kind, ParsedJournal
from tartlet_runtime.program.inbox import pack_delivery
from tartlet_runtime.timetravel.rerun import Rerun
from tartlet_runtime.timetravel.turns import PAGE_BYTES, SHOWN, page_of, run_again

HEADER = JournalHeader("p", common_pb2.Source.NATIVE, "a.py", (), bytes(16), 0, "")


def delivery(*rows: tuple[int, int, bytes]) -> JournalRecord:
    """A delivery of (event, ticket, payload)."""
    payload, records = b"", b""
    for event, ticket, data in rows:
        number = OutOfPages.number if event == Event.FAILURE else 0
        records += RECORD_STRUCT.pack(event, 1, ticket, 0, number, 0, 0, len(payload), len(data))
        payload += data
    return JournalRecord(10**9, b"", pack_delivery(len(rows), records, payload))


def parsed(*records: JournalRecord) -> ParsedJournal:
    return ParsedJournal(HEADER, list(records), 0, 0)


def test_a_native_run_tells_what_it_was_told_and_why_its_calls_are_missing() -> None:
    message = JournalRecord(5, b"", b"\x01kHELLO", kind=Kind.MESSAGE)
    end = JournalRecord(2 * 10**9, b"", b'{"result": "private"}', kind=Kind.END)
    journal = parsed(message, delivery((Event.RESULT, 7, b"secret"), (Event.FAILURE, 8, b"{}")), end)
    rerun, why = run_again(HEADER, [])
    assert rerun is None
    page = page_of(journal, rerun, why, 1, 10)
    assert page["why_no_calls"] == why != ""
    first, last = page["turns"]
    assert (first["calls"], last["calls"]) == (None, None)
    assert [m["bytes"] for m in first["messages"]] == [5]
    assert [(a["event"], a["ticket"], a["bytes"]) for a in first["told"]] == [("result", 7, 6), ("failure", 8, 2)]
    assert first["told"][1]["error"] == {"number": OutOfPages.number, "name": "OutOfPages"}
    assert page["ended"] == {"success": True, "error": None}
    assert "secret" not in str(page)
    assert "private" not in str(page)
    assert "private" in str(page_of(journal, rerun, why, 1, 10, texts=True))


def test_calls_are_known_up_to_where_the_run_again_came() -> None:
    rerun = Rerun(HEADER, [])
    rerun.commands = [Command(Op.RECEIVE, Flag.AWAIT, ticket, 0, 0, 0, 0, b"") for ticket in range(SHOWN + 3)]
    rerun.waits = [SHOWN + 1, SHOWN + 3]
    journal = parsed(*(delivery((Event.RESULT, ticket, b"x")) for ticket in (0, SHOWN + 2, 9)))
    page = page_of(journal, rerun, "why", 1, 2)
    assert (page["total"], page["next"]) == (4, 3)
    first, second = page["turns"]
    assert (len(first["calls"]), first["calls_left_out"]) == (SHOWN, 1)
    assert [call["ticket"] for call in second["calls"]] == [SHOWN + 1, SHOWN + 2]
    assert second["told"][0]["call"] == "receive"
    assert [turn["calls"] for turn in page_of(journal, rerun, "why", 3, 2)["turns"]] == [None, None]
    whole = parsed(*journal.records[:2])
    rerun.commands.append(Command(Op.SEND, 0, 999, 0, 0, 0, 0, b"bye"))
    assert page_of(whole, rerun, "", 3, 1)["turns"][0]["calls"] is None, "it waits, and nobody knows for what"
    rerun.ended = True
    assert [call["call"] for call in page_of(whole, rerun, "", 3, 1)["turns"][0]["calls"]] == ["send"]


def test_a_page_of_many_and_of_large_turns_fits_one_message() -> None:
    text = b"\x01" * 4000  # six bytes of JSON each
    large = JournalRecord(5, b"", b"\x00" + text, kind=Kind.MESSAGE)
    small = [delivery((Event.RESULT, 7, b"x")) for _ in range(3)]
    journal = parsed(small[0], *[large] * SHOWN, small[1], *[large] * 20, small[2])
    first: int | None = 1
    turns: list[Any] = []
    while first is not None:
        page = page_of(journal, None, "", first, 200, texts=True)
        assert len(json.dumps(page)) < 2 * PAGE_BYTES
        turns += page["turns"]
        assert page["next"] in (None, len(turns) + 1)
        first = page["next"]
    assert [turn["turn"] for turn in turns] == [1, 2, 3, 4]
    left_out = [sum("text_left_out" in message for message in turn["messages"]) for turn in turns]
    assert left_out[0] == left_out[2] == left_out[3] == 0 < left_out[1]
    assert all(("text" in m) != ("text_left_out" in m) for turn in turns for m in turn["messages"])
    assert len(page_of(journal, None, "", 1, 200)["turns"]) == 4
