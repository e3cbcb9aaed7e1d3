"""The turns of a recorded run: the calls that its program gave, and what it was told then.

A journal holds what a program was told. The calls come from running the program again, in this module's process. Its
input is a journal, its output the JSON object that `page_of` returns.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

from tartlet_common.abi import Event, Op, Record, decode
from tartlet_common.errors.registry import Diverged, TartletError
from tartlet_protos import common_pb2
from tartlet_runtime.abi.commands import Command
from tartlet_runtime.budget.ledger import Ledger
from tartlet_runtime.journal.records import JournalHeader, JournalRecord, Kind, ParsedJournal, parse_journal
from tartlet_runtime.timetravel.report import recorded_end
from tartlet_runtime.timetravel.rerun import Rerun, sandbox

SHOWN: Final = 200
"""Calls of a turn that are shown, and answers; the others are counted."""
_TEXT_CHARS: Final = 4000
PAGE_BYTES: Final = 1 << 20
"""JSON of a page of several turns, and of one turn's texts: a reply must fit one message."""
_PLACE_CHARS: Final = 300
_WHY_CHARS: Final = 500
_COMPILER_BYTES: Final = 256 << 20
_OPS: Final = frozenset(map(int, Op))
_EVENTS: Final = frozenset(map(int, Event))
_ASKED: Final = frozenset(
    {
        *(Op.LOG, Op.SEND, Op.TOKENIZE, Op.FORMAT_CHAT, Op.GET_MODEL, Op.AVAILABLE_MODELS, Op.GRAMMAR),
        *(Op.SPAWN, Op.CHILD_SEND, Op.CHILD_KILL, Op.HTTP_REQUEST, Op.STORE_GET, Op.STORE_SET, Op.BROADCAST),
    }
)
_ANSWERED: Final = frozenset(
    {
        *(Op.RECEIVE, Op.GET_ARG, Op.DETOKENIZE, Op.FORMAT_CHAT, Op.PROMPT_TEMPLATE, Op.SPAWN, Op.CHILD_NEXT),
        *(Op.HTTP_REQUEST, Op.HTTP_READ, Op.STORE_GET, Op.STORE_LIST_KEYS, Op.NEXT_MESSAGE, Op.USAGE),
    }
)


def page_of(
    parsed: ParsedJournal, rerun: Rerun | None, why_not: str, first: int, count: int, *, texts: bool = False
) -> dict[str, Any]:
    """Return turns of a recorded run as a JSON object.

    A turn has the calls since the turn before, and what the program was told then. The last turn is told nothing: the
    program ends there, or waits.

    Args:
        parsed: the journal.
        rerun: the run again, as far as it came; None: it can't be run again.
        why_not: why calls aren't known, from some turn on; "" if they are.
        first: number of the first turn, from 1.
        count: how many turns, at most. There are fewer if they don't fit `PAGE_BYTES`.
        texts: whether to tell what programs, models and clients wrote.
    """
    told, heard = _split(parsed.records)
    total = len(told) + 1
    turns: list[dict[str, Any]] = []
    size = 0
    names: dict[int, Command] = {}
    for number in range(1, min(total, first + count - 1) + 1):
        calls = _calls(rerun, number, total)
        names.update((call.ticket, call) for call in calls or ())
        if number < first:
            continue
        turn: dict[str, Any] = {"turn": number, "messages": _messages(heard[number - 1], texts=texts)}
        turn |= _shown("calls", None if calls is None else [_call(rerun, call, texts=texts) for call in calls])
        if number < total:
            record = told[number - 1]
            turn |= {"at_s": record.clock_ns / 1e9, **_shown("told", _told(record, names, texts=texts))}
        size += _fit(turn)
        if turns and size > PAGE_BYTES:
            break
        turns.append(turn)
    last = first + len(turns)
    return {
        "object": "journal",
        "id": parsed.header.program_id,
        "total": total,
        "next": last if last <= total else None,
        "why_no_calls": why_not[:_WHY_CHARS],
        "turns": turns,
        "ended": _end(parsed.records, texts=texts),
    }


def _fit(turn: dict[str, Any]) -> int:
    """Leave out texts of a turn that don't fit a page. Returns the size of its JSON in bytes."""
    room = PAGE_BYTES
    for item in chain(turn["calls"] or (), turn["messages"], turn.get("told") or ()):
        room -= len(json.dumps(item.get("text", "")))
        if room < 0 and "text" in item:
            del item["text"]
            item["text_left_out"] = True
    return len(json.dumps(turn))


def _split(records: Sequence[JournalRecord]) -> tuple[list[JournalRecord], list[list[JournalRecord]]]:
    """Return the deliveries, and the clients' messages before each of them and behind the last one."""
    told: list[JournalRecord] = []
    heard: list[list[JournalRecord]] = [[]]
    for record in records:
        if record.kind == Kind.DELIVERY:
            told.append(record)
            heard.append([])
        elif record.kind == Kind.MESSAGE:
            heard[-1].append(record)
    return told, heard


def _calls(rerun: Rerun | None, number: int, total: int) -> list[Command] | None:
    """Return the calls of a turn; None if they aren't known."""
    if rerun is None or number > len(rerun.waits) + 1:
        return None
    begin = rerun.waits[number - 2] if number > 1 else 0
    if number <= len(rerun.waits):
        return rerun.commands[begin : rerun.waits[number - 1]]
    return rerun.commands[begin:] if rerun.ended and number == total else None


def _shown(name: str, items: list[dict[str, Any]] | None) -> dict[str, Any]:
    if items is None:
        return {name: None}
    return {name: items[:SHOWN], f"{name}_left_out": max(0, len(items) - SHOWN)}


def _call(rerun: Rerun | None, call: Command, *, texts: bool) -> dict[str, Any]:
    line = rerun.line_of(call) if rerun is not None else ""
    text = _text(call.payload) if texts and call.op in _ASKED else {}
    return {
        "call": _name(call.op),
        "ticket": call.ticket,
        "queue": call.queue,
        "bytes": len(call.payload),
        "line": line[:_PLACE_CHARS],
        **text,
    }


def _told(record: JournalRecord, names: dict[int, Command], *, texts: bool) -> list[dict[str, Any]]:
    batch = decode(record.delivery, limit=len(record.delivery))
    items = []
    for row in batch.records.tolist():
        answer = Record._make(row)
        call = names.get(answer.ticket)
        payload = batch.payload[answer.offset : answer.offset + answer.length]
        item: dict[str, Any] = {
            "event": Event(answer.op).name.lower() if answer.op in _EVENTS else f"event {answer.op}",
            "call": "" if call is None else _name(call.op),
            "ticket": answer.ticket,
            "bytes": len(payload),
        }
        if answer.op in (Event.FAILURE, Event.KILL):
            error = TartletError.from_wire(answer.a, payload)
            item["error"] = {"number": error.number, "name": error.name}
        elif texts and answer.op == Event.RESULT and call is not None and call.op in _ANSWERED:
            item |= _text(payload)
        items.append(item)
    return items


def _messages(records: list[JournalRecord], *, texts: bool) -> list[dict[str, Any]]:
    messages = []
    for record in records[:SHOWN]:
        data = record.delivery[1 + record.delivery[0] :]
        messages.append({"at_s": record.clock_ns / 1e9, "bytes": len(data), **(_text(data) if texts else {})})
    return messages


def _end(records: Sequence[JournalRecord], *, texts: bool) -> dict[str, Any] | None:
    end = recorded_end(records)
    if end is None:
        return None
    error = None if end.error is None else {"number": end.error.number, "name": end.error.name}
    return {"success": error is None, "error": error, **(_text(str(end).encode()) if texts else {})}


def _name(op: int) -> str:
    return Op(op).name.lower() if op in _OPS else f"operation {op}"


def _text(data: bytes) -> dict[str, Any]:
    return {"text": data[: 4 * _TEXT_CHARS].decode("utf-8", "replace")[:_TEXT_CHARS]}


def run_again(header: JournalHeader, deliveries: Sequence[JournalRecord]) -> tuple[Rerun | None, str]:
    """Run a program again up to its next wait behind `deliveries`. Returns the run, and why it isn't complete."""
    if header.language == common_pb2.Source.NATIVE:
        return None, "the program ran outside the sandbox"
    rerun = Rerun(header, deliveries)
    try:
        with sandbox(Ledger(_COMPILER_BYTES)) as box:
            box.check(header, header.source)
            box.run(rerun, header.source)
    except Diverged as e:
        del rerun.waits[-1:]  # the calls before it are other ones than those of then
        return rerun, str(e)
    except TartletError as e:
        return None, str(e)
    return rerun, "the program ended early when it was run again" if rerun.at < len(deliveries) else ""


def main() -> None:
    """Read a journal from stdin and write its page to stdout."""
    parser = argparse.ArgumentParser(prog="turns", allow_abbrev=False)
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("cpu_s", type=int)
    parser.add_argument("--texts", action="store_true")
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CPU, (args.cpu_s, args.cpu_s))
    parsed = parse_journal(sys.stdin.buffer.read(), "the journal")
    deliveries = [record for record in parsed.records if record.kind == Kind.DELIVERY]
    rerun, why_not = run_again(parsed.header, deliveries[: args.first + args.count - 2])
    page = page_of(parsed, rerun, why_not, args.first, args.count, texts=args.texts)
    sys.stdout.write(json.dumps(page, ensure_ascii=False, separators=(",", ":")))


if __name__ == "__main__":
    main()
