"""Undoes what an engine hasn't answered: the program's commands since then are queued again, in their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from tartlet_common.errors.registry import TartletError, WorkerLost
from tartlet_control.calls.output import Sample
from tartlet_control.calls.queue import Barrier, Synchronize
from tartlet_control.calls.tables import ForwardTable, Reused, Share, Table
from tartlet_control.rebuild.notes import share_key
from tartlet_control.tables.grammars import Grammar
from tartlet_control.tables.page_tables import PageTable
from tartlet_control.tables.programs import Command, CommandQueue, Place, Replay


def undo(place: Place) -> dict[CommandQueue, int]:
    """Queue again all that is in the log, whose front has no outcome. The place holds nothing on an engine.

    Commands of control were answered and counted when they were executed, and that isn't repeated (`Replay.told`).

    Returns:
        How many commands of each queue have settled once these are executed again.
    """
    commands = [c for c in place.log if not (type(c) is Synchronize and c.outcome is not None)]
    place.log.clear()
    commands = _computed(place, commands)
    told = {c for c in commands if c.outcome is not None}
    if place.replay is not None:  # another engine was lost before all was executed again
        left = place.replay.left
        told |= place.replay.told.intersection(left)
        commands += left
    waited = set(commands)
    again: dict[CommandQueue, list[Command]] = {}
    for command in commands:
        again.setdefault(command.queue, []).append(command)
        if type(command) is Share:
            command.done, command.error = False, None
            place.tables.pop(share_key(command.by), None)
    replay = Replay(commands)
    replay.told = told
    for command in commands:
        command.outcome = None
    for queue in [q for q in place.program.queues.values() if q.place is place and q.id >= 0]:
        mine = again.get(queue, [])
        queue.syncs.clear()
        queue.reset_at = min(queue.reset_at, queue.settled)
        queue.poison = queue.cause if queue.id in place.book.failed else None
        others = [c for c in queue.pending if c not in waited and type(c) is not Barrier]
        queue.pending = deque([*_with_barriers(mine, replay), *others])
    place.replay = replay or None
    count_tables(place)
    return {q: q.settled + n for q, mine in again.items() if (n := sum(bool(c.kind) for c in mine))}


def _computed(place: Place, commands: list[Command]) -> list[Command]:
    """Return the commands with those that other rows made needless: the lost engine had these rows."""
    behind: dict[Command, ForwardTable] = {}  # by the command before each
    for command in commands:
        if type(command) is Reused:
            behind.update(command.covered)
            if command.trimmed is not None:
                command.trimmed.restore()
    count = len(behind)
    for queue in dict.fromkeys(forward.queue for forward in behind.values()):
        queue.pending = deque(_followed(queue.pending, behind))
    found = _followed([c for c in commands if type(c) is not Reused], behind)
    place.program.in_flight += count - len(behind)  # others were cancelled
    return found


def _followed(commands: Iterable[Command], behind: dict[Command, ForwardTable]) -> list[Command]:
    """Return commands, each followed by the one that comes behind it, which is taken out of `behind`."""
    found: list[Command] = []
    for command in commands:
        found.append(command)
        forward = behind.pop(command, None)
        if forward is not None:
            found.append(forward)
    return found


def _with_barriers(commands: list[Command], replay: Replay) -> list[Command]:
    """Return the commands of one queue, with a barrier where those of other queues come in between."""
    queued: list[Command] = []
    known = 0
    for command in commands:
        turn = replay.turn(command)
        if command.kind and turn > known:
            queued.append(Barrier(command.queue, command.arrived, turn))
        known = turn if command.kind else turn + 1
        queued.append(command)
    return queued


def count_tables(place: Place) -> None:
    """Count the TABLE commands that wait, and forget tables that neither exist nor will."""
    for table in place.tables.values():
        table.waiting = 0
    for queue in place.program.queues.values():
        for command in queue.pending:
            if type(command) is Table and queue.place is place:
                waited = place.tables.setdefault(command.table, PageTable(queue.id))
                waited.waiting += 1
    kept = place.book.tables
    place.tables = {n: table for n, table in place.tables.items() if table.waiting or n in kept}


def needed_grammars(place: Place) -> dict[Grammar, None]:
    """Return the grammars without which a program's state can't be made again, whether it has freed them or not.

    Samples that are sent again have their grammar, though the program may have freed it since.
    """
    found = {matcher.grammar: None for matcher in place.book.matchers.values() if matcher is not None}
    for command in () if place.replay is None else place.replay.left:
        if type(command) is Sample and command.named is not None:
            command.sent = True
            found[command.named] = None
    return found


def obstacle(place: Place) -> str:
    """Return the call that keeps a program's state from being made again; "" if nothing does."""
    return place.book.obstacle()


def not_plain(error: TartletError, call: str) -> WorkerLost:
    """Return how a program ends whose engine is lost, if a call keeps its state from being made again."""
    lost = error.fields.get("engine", "")
    return WorkerLost(engine=f"{lost}; what {call} has made can't be made again", call=call)
