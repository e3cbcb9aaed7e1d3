"""Compares what a program's books say with what the fold of the program's history says, and with an oracle.

Commands that haven't ended are left out of the history, so all three must say the same. The fold notes commands as the
core does, by `rebuild.notes`. The oracle does nothing in the same way, so it finds notes that are wrong in both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from tartlet_common.abi import Op
from tartlet_common.engine.step import Status
from tartlet_control.calls.kv import Dealloc
from tartlet_control.calls.queue import Faulty, Reset
from tartlet_control.calls.registry import PARSERS
from tartlet_control.calls.tables import ForwardTable, Share, Table
from tartlet_control.rebuild.finding import reads_ended
from tartlet_control.rebuild.fold import fold
from tartlet_control.rebuild.histories import Sent, is_wrong_priority
from tartlet_control.rebuild.logs import DONE, settle
from tartlet_control.rebuild.oracle import LOST, retell
from tartlet_control.tables.lineage import Book, Line
from tartlet_control.tables.models import ServedModel
from tartlet_control.tables.programs import Command, Place, ProgramState

_EXECUTED_BEHIND_FAILURES: Final = {Dealloc, Table, Share, Reset}


def content(book: Book, page_size: int) -> dict[str, Any]:
    """Return what a book says, without the identity of its parts."""
    rows: dict[int, int] = {}
    numbers = {id(line): number for number, line in book.tables.items()}

    def of(line: Line) -> Any:
        shared = [rows.setdefault(id(row), len(rows)) for row in line.rows]
        tokens = line.tokens(0, line.plain, page_size)
        at = (line.queue_id, line.length, line.plain, line.limit, line.shared, line.is_plain)
        return *at, shared, tokens, line.adapter

    def held(embed: Any) -> Any:
        if embed is None or len(embed) != 3:
            return embed
        line, slot, writes = embed
        number = numbers.get(id(line))
        return number, slot, number is not None and line.kept(slot, writes)

    slots = {i: s and (s[0], s[1], s[2] and (list(s[2].prompt), list(s[2].output))) for i, s in book.slots.items()}
    return {
        "tables": {n: of(book.tables[n]) for n in sorted(book.tables)},
        "embeds": {i: held(embed) for i, embed in book.embeds.items()},
        "slots": slots,
        "pages": dict(book.pages),
        "failed": set(book.failed),
        "matchers": {slot: m and (m.grammar.kind, m.grammar.text, list(m.tokens)) for slot, m in book.matchers.items()},
    }


def differences(
    program: ProgramState, commands: Sequence[Sent], answers: Sequence[Sent], model_at: Callable[[int], ServedModel]
) -> dict[str, tuple[Any, Any]] | None:
    """Return what a program's books say differently than its history, by part: the book's, the other's.

    A part of an oracle's has "by the oracle" in its name; the others are the fold's.

    None: they can't be compared now, because a place's state is being made again, a `table` waits for its turn, or a
    forward hasn't ended of whose rows others had computed some. These rows are in the book already.

    Args:
        program: a live one. What has settled is noted in its books.
        commands: all records that control has taken of the program, in order.
        answers: all records that control has sent to the program, in order.
        model_at: returns the model with a number of the program's runtime.

    Raises:
        TartletError: the records don't fit together.
    """
    for place in program.places.values():
        if place.recovery is not None or place.replay is not None:
            return None
        settle(place)
        if any(number < 0 for number in place.book.tables):  # a `table` whose rows are taken, waiting for its turn
            return None
        if any(type(command) is ForwardTable and command.cut for command in _open(place)):
            return None
    noted = _noted(program, commands)
    tickets = {record.ticket for record, _ in noted}
    told = [sent for sent in answers if sent[0].ticket in tickets]
    alone = ProgramState(program.id, program.handle, program.session, program.default_model)
    fold(alone, noted, told, model_at)
    for queue in alone.queues.values():  # nobody awaits their last commands, so no answer says that they have ended
        queue.poison = None
    found: dict[str, tuple[Any, Any]] = {}
    for index, place in program.places.items():
        other = alone.places.get(index) or Place(alone, place.model)
        _finish(other)
        size = place.model.spec.page_size
        ours, folded = content(place.book, size), content(other.book, size)
        found |= {
            f"{part} of {place.model.spec.model}": (ours[part], folded[part])
            for part in ours
            if ours[part] != folded[part]
        }
        queues = {queue.id for queue in program.queues.values() if queue.place is place}
        retold = retell(noted, told, queues, size).content()
        ours = _without_reasons(ours, retold)
        found |= {
            f"{part} of {place.model.spec.model}, by the oracle": (ours[part], retold[part])
            for part in ours
            if ours[part] != retold[part]
        }
    return found


def _without_reasons(content: dict[str, Any], retold: dict[str, Any]) -> dict[str, Any]:
    """Return a book's content as far as an oracle knows it: not the calls for which embeds are lost.

    The oracle keeps every matcher, and a book only so many.
    """
    embeds = {i: LOST if held is not None and len(held) == 1 else held for i, held in content["embeds"].items()}
    matchers = {
        slot: retold["matchers"].get(slot) if matcher is None else matcher
        for slot, matcher in content["matchers"].items()
    }
    return content | {"embeds": embeds, "matchers": matchers}


def _open(place: Place) -> list[Command]:
    """Return the commands of a place that haven't ended."""
    waiting = [command for q in place.program.queues.values() if q.place is place for command in q.pending]
    return [*place.log, *waiting]


def _noted(program: ProgramState, commands: Sequence[Sent]) -> list[Sent]:
    """Return the records whose effect is in the program's books.

    A failed command waits in its place's log behind commands that are still on the engine. The commands of its queue
    that were refused for it, up to a `reset`, are in no log. They are left out with the failed one: without it, they
    would seem to have been executed.
    """
    logged = [command for place in program.places.values() for command in place.log]
    open_ = {command.ticket for command in logged}
    open_ |= {command.ticket for queue in program.queues.values() for command in queue.pending}
    failed = {command.ticket for command in logged if _has_failed(command)}
    poisoned, noted = set[int](), list[Sent]()
    for record, payload in commands:
        if record.op == Op.RESET:
            poisoned.discard(record.queue)
        elif record.ticket in failed:
            poisoned.add(record.queue)
        has_turn = record.op in PARSERS or is_wrong_priority(record)  # else it acts on arrival, as `cancel` does
        is_refused = record.queue in poisoned and has_turn
        if record.ticket not in open_ and not is_refused:
            noted.append((record, payload))
    return noted


def _has_failed(command: Command) -> bool:
    return type(command) is Faulty or (isinstance(command.outcome, int) and command.outcome != Status.SKIPPED)


def _finish(place: Place) -> None:
    """Note what the fold leaves open: all of it has ended, because failures are told.

    A command has ended well, behind a stop token, or without effect behind a failure of its queue.
    """
    log, place.log = place.log, deque[Command]()
    for command in log:
        if command.queue.id in place.book.failed and type(command) not in _EXECUTED_BEHIND_FAILURES:
            continue
        if type(command) is not Share or command.outcome is None:
            skipped = command.kind and reads_ended(place.book, command)
            command.outcome = int(Status.SKIPPED) if skipped else DONE
        place.log.append(command)
        settle(place)
