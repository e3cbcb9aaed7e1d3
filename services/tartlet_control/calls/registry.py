"""The calls of command queues, in pipeline order. Parsers, packers and conflicts are looked up here.

An operation of the ABI or a kind of batch that no call provides fails the import of this module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tartlet_common.abi import QUEUED_OPS, Record
from tartlet_common.engine.step import Batch, Kind, check_covers
from tartlet_common.errors.base import TartletError
from tartlet_common.errors.registry import (
    EmbedLost,
    FrameTooLarge,
    InvalidArgument,
    OutOfPages,
    UnknownOperation,
    UnknownResource,
    UnsupportedTrait,
)
from tartlet_control.calls import embed, forward, kv, names, output, queue, table_copies, table_masks, tables
from tartlet_control.calls.base import ControlCall, EngineCall, Parser, SameBatch
from tartlet_control.tables.ledger import RESOURCE_NAMES
from tartlet_control.tables.programs import Command, CommandQueue, Held

MAX_COMMAND_BYTES: Final = (3 << 20) + 4096
"""Largest command: one that runs alone still leaves room in its step's message for what the step clears."""

CONTROL_CALLS: Final[tuple[ControlCall, ...]] = (
    *queue.CONTROL_CALLS,
    *kv.CONTROL_CALLS,
    *tables.CONTROL_CALLS,
    *names.CONTROL_CALLS,
)
"""Calls that control executes at the head of their queue."""
ENGINE_CALLS: Final[tuple[EngineCall, ...]] = (
    *embed.ENGINE_CALLS,
    *kv.ENGINE_CALLS,
    *table_masks.ENGINE_CALLS,
    *forward.ENGINE_CALLS,
    *output.ENGINE_CALLS,
)
"""Calls that engines execute, in the order in which a decode iteration uses them."""
SAME_BATCH: Final[tuple[SameBatch, ...]] = (*tables.SAME_BATCH, *table_copies.SAME_BATCH)
"""Calls whose commands stand in the batches of engine calls."""

PARSERS: Final[dict[int, Parser]] = {
    **{int(call.op): call.parse for call in CONTROL_CALLS},
    **{int(call.op): call.parse for call in ENGINE_CALLS},
    **{int(call.op): call.parse for call in SAME_BATCH},
}
"""By operation."""
BY_KIND: Final = {int(call.kind): call for call in ENGINE_CALLS}
"""Engine calls by kind, in pipeline order."""
RUNS_LAYERS: Final = frozenset(int(call.kind) for call in ENGINE_CALLS if call.runs_layers)
"""Kinds that go through the model's layers."""

check_covers(PARSERS, QUEUED_OPS, "tartlet_control.calls.registry")
check_covers(BY_KIND, Kind, "tartlet_control.calls.registry")


def parse(queue: CommandQueue, record: Record, payload: memoryview, arrived: float) -> Command:
    """Return the command that a record of `queue` asks for; `payload` is that record's own bytes.

    Raises:
        UnknownOperation: no queue takes this operation.
        MalformedSubmission: the payload's length isn't what the operation needs.
        InvalidArgument, ContextTooLong, UnsupportedTrait: an argument the model or this release doesn't allow.
        FrameTooLarge: the command is larger than a step's message can hold.
    """
    parser = PARSERS.get(record.op)
    if parser is None:
        raise UnknownOperation(op=record.op)
    command = parser(queue, record, payload, arrived)
    if command.size > MAX_COMMAND_BYTES:
        raise FrameTooLarge(size=command.size, what="bytes in a command", limit=MAX_COMMAND_BYTES)
    return command


Fail = Callable[[Command, TartletError], None]
Refuse = Callable[[Command], None]


def build(kind: int, commands: list[Command], fail: Fail, refuse: Refuse) -> tuple[Batch | None, list[Command]]:
    """Pack commands of one kind: translate their virtual ids to physical ones, and make columns of them.

    A command whose ids don't translate is handed to `fail` and left out. One whose queue is poisoned by then, perhaps
    by that failure, is handed to `refuse`.

    Returns:
        The batch, None without commands, and the commands that are in it.
    """
    kept: list[Command] = []
    pack = BY_KIND[kind].pack()
    add, lanes = pack.add, pack.lanes
    for command in commands:
        queue = command.queue
        if queue.poison is not None:
            refuse(command)
            continue
        place = queue.place
        if place.lost and (lost := _lost(command, place.lost)) is not None:
            fail(command, lost)
            continue
        try:
            add(command, place.held)
        except KeyError as e:
            fail(command, _unknown(command, place.held, e.args[0]))
            continue
        except (InvalidArgument, OutOfPages, UnknownResource, UnsupportedTrait) as e:
            fail(command, e)
            continue
        lanes.append(queue.lane)
        kept.append(command)
    return (pack.finish(), kept) if kept else (None, kept)


def _lost(command: Command, lost: dict[int, str]) -> EmbedLost | None:
    """Return the error of a command that reads a lost embed. An embed that is written isn't lost any more."""
    call = BY_KIND[command.kind]
    for read in call.reads(command):
        if read in lost:
            return EmbedLost(embed=read, call=lost[read])
    for written in call.writes(command):
        lost.pop(written, None)
    return None


def _unknown(command: Command, held: Held, missing: int) -> UnknownResource:
    """Say which kind of thing the id `missing` should have been; asked only after a failure."""
    for pool, ids in BY_KIND[command.kind].names(command):
        if missing in ids and missing not in held[pool]:
            return UnknownResource(kind=RESOURCE_NAMES[pool], id=missing)
    raise AssertionError(f"{missing} is in no list of {command}")
