"""The calls of recorded runs, as a trace for `tartlet simulate`: which ran side by side, and the tokens of each.

A call is what a program computes on one queue between two prompts: tokens that it embedded together, then tokens that
it sampled one after the other. Calls that overlap make a wave. What a program did between two waves (tools, messages)
is a pause, so it doesn't depend on how fast the engine of the recorded run was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tartlet_common.abi import FORWARD_HEAD, FORWARD_TABLE_HEAD, Event, Op, decode
from tartlet_runtime.abi.commands import Command
from tartlet_runtime.timetravel.rerun import Rerun

_ANSWERED: Final = frozenset({Op.SAMPLE, Op.GET_NEXT_DIST})
_HEADS: Final = {Op.FORWARD: FORWARD_HEAD, Op.FORWARD_TABLE: FORWARD_TABLE_HEAD}
_NS: Final = 1e9


@dataclass(slots=True)
class Call:
    """One call of a run. Times are in seconds of the guest's clock since the run's start."""

    begun_s: float
    ended_s: float
    prefill: int = 0
    decode: int = 0


def trace_of(rerun: Rerun, since_ns: int) -> dict[str, Any] | None:
    """Return a run as a line of a trace; None if it computed nothing.

    Args:
        rerun: has run the program as far as its journal goes.
        since_ns: the start of the trace, nanoseconds since the epoch.
    """
    calls = calls_of(_events(rerun))
    if not calls:
        return None
    waves, pauses = waves_of(calls)
    header = rerun.header
    arrival_s = (header.start_ns - since_ns) / _NS
    return {"arrival_s": arrival_s, "name": header.name or header.filename, "waves": waves, "pauses_s": pauses}


def _events(rerun: Rerun) -> Iterator[tuple[float, Sequence[Command], frozenset[int]]]:
    """Yield the time of each turn of the guest, its commands then, and the tickets that were answered before."""
    first, at_s, answered = 0, 0.0, frozenset[int]()
    for turn, end in enumerate(rerun.waits):
        yield at_s, rerun.commands[first:end], answered
        first = end
        if turn < len(rerun.records):
            record = rerun.records[turn]
            rows = decode(record.delivery).records
            answered = frozenset(rows["ticket"][rows["op"] == Event.RESULT].tolist())
            at_s = record.clock_ns / _NS
    yield at_s, rerun.commands[first:], answered


def calls_of(turns: Iterator[tuple[float, Sequence[Command], frozenset[int]]]) -> list[Call]:
    """Return the calls of a run, by their beginnings.

    Args:
        turns: of each turn of the guest its time, its commands, and the tickets that were answered before it.
    """
    calls: list[Call] = []
    latest: dict[int, Call] = {}  # by queue
    asked: dict[int, Call] = {}  # by the tickets of samples without an answer
    sampled: set[int] = set()  # queues whose latest call has samples
    for at_s, commands, answered in turns:
        for ticket in answered & asked.keys():
            call = asked.pop(ticket)
            call.decode += 1
            call.ended_s = at_s
        for command in commands:
            if command.op in _HEADS:
                tokens = int.from_bytes(command.payload[_offset(command) : _offset(command) + 4], "little")
                if command.queue not in latest or (command.queue in sampled and tokens > 1):
                    calls.append(Call(at_s, at_s))
                    latest[command.queue] = calls[-1]
                    sampled.discard(command.queue)
                if command.queue not in sampled:
                    latest[command.queue].prefill += tokens
            elif command.op in _ANSWERED and command.queue in latest:
                asked[command.ticket] = latest[command.queue]
                sampled.add(command.queue)
    return calls


def _offset(command: Command) -> int:
    """Return where the number of embeds stands in the payload of a forward."""
    return int(_HEADS[Op(command.op)].fields["n_iemb"][1])  # type: ignore[index] # a structured dtype has fields


def waves_of(calls: Sequence[Call]) -> tuple[list[list[list[int]]], list[float]]:
    """Return calls in waves, each with its calls' tokens to prefill and to decode, and the pause before each wave.

    Example:
        >>> calls = [Call(0.5, 2.0, 30, 5), Call(1.0, 1.5, 20, 3), Call(4.0, 5.0, 10, 8)]
        >>> waves_of(calls)
        ([[[30, 5], [20, 3]], [[10, 8]]], [0.5, 2.0])
    """
    waves: list[list[list[int]]] = []
    pauses: list[float] = []
    ended_s = 0.0
    for call in calls:
        if not waves or call.begun_s >= ended_s:
            waves.append([])
            pauses.append(round(max(0.0, call.begun_s - ended_s), 6))
        waves[-1].append([call.prefill, max(1, call.decode)])
        ended_s = max(ended_s, call.ended_s)
    return waves, pauses
