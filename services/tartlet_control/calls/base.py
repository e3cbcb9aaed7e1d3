"""What makes up a call: the parts that each call's own file provides, and what these parts share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final, Protocol

import numpy as np

from tartlet_common.abi import Op, Record
from tartlet_common.engine.step import Batch, BatchResult, Kind
from tartlet_common.errors.registry import InvalidArgument, MalformedSubmission
from tartlet_control.tables.programs import Command, CommandQueue, Held, ProgramState

MAX_IDS: Final = 1 << 17
"""Longest list of ids in a command: the pages of one forward, and the ids of one alloc or dealloc."""
MAX_TOKENS: Final = 1 << 16
"""Most tokens of one command: its columns fit a message between processes."""
MAX_ANSWER_BYTES: Final = 3 << 20
"""Largest answer to one command."""

Parser = Callable[[CommandQueue, Record, memoryview, float], Command]
"""Makes a record of a queue a command: `parse(queue, record, payload, arrived)`. `payload` is the record's own bytes.

Raises a `TartletError` if the record's own values are wrong. The ids that it names are checked at dispatch.
"""
Value = tuple[int, int, int, bytes]
"""The fields `a`, `b` and `c` of an answer, and its payload."""
NO_VALUE: Final[Value] = (0, 0, 0, b"")


class Conflicts(Protocol):
    """Decides which consecutive commands of one queue may share a batch (vertical batching: Pie 5.2).

    A batch reads embeds and token slots as they were before it, and the worker makes the K/V of its commands visible in
    command order, layer by layer. So a later forward may read pages that an earlier one of its batch writes, but no
    embed; and nothing may be written twice, or written after an earlier command read it. Ids are virtual: within one
    program they name physical ones uniquely.

    An object holds what one batch uses of one queue, as sets, so that a queue of a thousand commands is walked once.
    """

    def add(self, command: Any) -> None:
        """Record that `command` is in the batch."""

    def conflicts(self, candidate: Any) -> bool:
        """Return whether `candidate` must wait for this batch."""


class Pack(Protocol):
    """Collects the commands of one batch as columns, with physical ids."""

    lanes: list[int]

    def add(self, command: Any, held: Held) -> None:
        """Add a command, or nothing of it on an error.

        Raises:
            KeyError: the program doesn't hold an id that the command names.
            UnknownResource: the program has no table of the number that the command names.
            InvalidArgument: the command asks for more than the program may.
            UnsupportedTrait: the engine's worker is of a release that lacks what the command asks for.
        """

    def finish(self) -> Batch:
        """Return the batch."""


class ReadsOnly:
    """The `Conflicts` of a call that writes nothing that a command of its own kind reads or writes."""

    __slots__ = ()

    def add(self, command: Any) -> None:
        """No-op: nothing is written."""

    def conflicts(self, candidate: Any) -> bool:
        """Return False."""
        return False


def no_values(commands: Sequence[Any], answers: BatchResult) -> Iterable[Value]:
    """Settle a call whose answer says nothing but that it has ended."""
    return repeat(NO_VALUE)


def no_embeds(_: Any) -> Iterable[int]:
    """Return the embeds that a call without embeds reads, or writes."""
    return ()


@dataclass(frozen=True, slots=True)
class ControlCall:
    """A call that control executes itself when it reaches the head of its queue."""

    op: Op
    parse: Parser


@dataclass(frozen=True, slots=True)
class SameBatch:
    """A call whose commands stand in the batches of another call's kind, which packs them too."""

    op: Op
    parse: Parser


@dataclass(frozen=True, slots=True)
class EngineCall:
    """A call that an engine executes, in batches of its kind."""

    op: Op
    kind: Kind
    parse: Parser
    conflicts: Callable[[], Conflicts]
    pack: Callable[[], Pack]
    names: Callable[[Any], Iterable[tuple[int, Iterable[int]]]]
    """The ids that a command names, as pairs of a pool and virtual ids. Called only to explain a failure."""
    reads: Callable[[Any], Iterable[int]] = no_embeds
    """The embeds whose content a command reads."""
    writes: Callable[[Any], Iterable[int]] = no_embeds
    """The embeds that a command writes."""
    settle: Callable[[Sequence[Any], BatchResult], Iterable[Value]] = no_values
    """Reads the value of each command of a batch. Raises EngineFailure if the columns don't fit the commands."""
    count: Callable[[ProgramState, Any], None] | None = None
    """Adds a command that ended well to the counters of its program."""
    runs_layers: bool = False
    """Whether it goes through the model's layers: a step has at most one such batch."""
    always_answered: bool = False
    """Whether the answer is delivered although the program doesn't wait for it."""


def words(payload: memoryview) -> list[int]:
    """Return a payload of u32 as integers.

    Raises:
        MalformedSubmission: it isn't whole u32s.
    """
    if len(payload) & 3:
        raise MalformedSubmission(detail=f"a list of {len(payload)} bytes isn't whole u32s")
    return payload.cast("I").tolist()


def check_distinct(argument: str, ids: list[int]) -> None:
    """Check that no id stands in a list twice.

    Raises:
        InvalidArgument: one does.
    """
    if len(set(ids)) != len(ids):
        raise InvalidArgument(argument=argument, detail="an id stands in it twice")


def i32(values: list[int]) -> Any:
    """Return a column of int32."""
    return np.array(values, np.int32)


def u32(values: list[int]) -> Any:
    """Return a column of uint32."""
    return np.array(values, np.uint32)
