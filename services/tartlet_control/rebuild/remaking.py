"""The commands with which control makes a program's state again, on a queue of its own.

They are ordinary engine commands, so they share steps with everything else that waits. Ids from `SCRATCH` on name
embeds and a slot that only these commands use: programs' own ids have 32 bits.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

import numpy as np

from tartlet_common.abi import SAMPLE_OPTIONS, Record, SampleFlag
from tartlet_control.calls.embed import EmbedTxt
from tartlet_control.calls.output import Sample
from tartlet_control.calls.tables import ForwardTable
from tartlet_control.rebuild.plan import Make, Plan, Prefill
from tartlet_control.tables.grammars import Matcher
from tartlet_control.tables.lineage import Book, SlotContent
from tartlet_control.tables.page_tables import PageTable
from tartlet_control.tables.programs import Command, CommandQueue

SCRATCH: Final = 1 << 32
_GREEDY: Final = struct.Struct("<fIffQII")


class Remake(Command):
    """Tells the engine the rows of a table, once the table with which it shares rows has been computed."""

    __slots__ = ("keep", "source", "table")

    def __init__(self, queue: CommandQueue, arrived: float, table: PageTable, source: PageTable, keep: int) -> None:
        super().__init__(queue, _record(queue), arrived)
        self.table = table
        self.source = source
        self.keep = keep


class Remade(Command):
    """Stands behind the last command that makes a program's state again."""

    __slots__ = ()


class RemakeForward(ForwardTable):
    """A `forward_table` whose table is known, and may be written where it shares rows: they get what they had."""

    __slots__ = ("page_table",)
    page_table: PageTable

    def find(self) -> PageTable:
        """Return the table."""
        return self.page_table


def remake(command: Remake) -> None:
    """Execute a `Remake`."""
    engine, table = command.queue.place.engine, command.table
    assert engine is not None
    engine.tables.change(table.number, command.source.number, command.keep, table.rows[command.keep :])


def commands(queue: CommandQueue, plan: Plan, tables: dict[int, PageTable], book: Book, now: float) -> list[Command]:
    """Return the commands that a plan asks for, in order.

    Args:
        queue: control's own queue of the program.
        plan: what is to be made.
        tables: the new page table of each line, by the line's identity.
        book: what each token slot holds, and its matcher.
        now: seconds on control's clock.
    """
    numbers = {line: i for i, line in enumerate(tables)}
    made: list[Command] = []
    for part in plan.parts:
        if isinstance(part, Make):
            source = part.source or part.line
            made.append(Remake(queue, now, tables[id(part.line)], tables[id(source)], part.keep))
        else:
            made += _pass(queue, part, tables[id(part.line)], numbers[id(part.line)], now)
    if plan.tokens:
        embeds = [*plan.tokens]
        tokens, positions = zip(*plan.tokens.values(), strict=True)
        made.append(_embed(queue, embeds, [*tokens], [*positions], now))
    written = {slot: content for slot, content in book.slots.items() if content is not None}
    if written and not any(isinstance(part, Prefill) for part in plan.parts):  # samples read an embed
        made.append(_embed(queue, [SCRATCH], [0], [0], now))
    for slot, content in written.items():
        matcher = book.matchers.get(slot)
        if matcher is not None:
            made.append(_matcher(queue, slot, matcher, now))
        made += _slot(queue, slot, content, now)
    if plan.ended:
        made += _slot(queue, SCRATCH, (0, 1, None), now)
        count = len(plan.ended)
        made.append(_embed(queue, plan.ended, [SCRATCH] * count, [0] * count, now, from_slots=True))
    made.append(Remade(queue, _record(queue), now))
    return made


def _record(queue: CommandQueue, a: int = 0, b: int = 0) -> Record:
    return Record(0, 0, 0, queue.id, a, b, 0, 0, 0)


def _embed(
    queue: CommandQueue, embeds: list[int], sources: list[int], positions: list[int], now: float, *,
    from_slots: bool = False,
) -> EmbedTxt:  # fmt: skip
    record = _record(queue, len(embeds), int(from_slots))
    return EmbedTxt(queue, record, now, [*embeds, *sources, *positions])


def _pass(queue: CommandQueue, part: Prefill, table: PageTable, number: int, now: float) -> list[Command]:
    count = len(part.tokens)
    scratch = [*range(SCRATCH, SCRATCH + count)]
    outputs = [] if part.output is None else [part.output]
    forward = RemakeForward(queue, _record(queue, part.start), now, ([], scratch, [], outputs), b"")
    forward.table = number
    forward.adapter = part.line.adapter
    forward.page_table = table
    return [_embed(queue, scratch, part.tokens, [*range(part.start, part.start + count)], now), forward]


def _slot(queue: CommandQueue, slot: int, content: SlotContent, now: float) -> list[Command]:
    """Return the samples that write a token slot: only one token is allowed."""
    token, ended, history = content
    made: list[Command] = []
    if history is not None and len(history.output):
        made.append(_sample(queue, slot, history.output[-1], now, prompt=history.prompt, output=history.output[:-1]))
    made.append(_sample(queue, slot, token, now, ended=ended))
    return made


def _matcher(queue: CommandQueue, slot: int, matcher: Matcher, now: float) -> Sample:
    """Return the sample that makes a slot's matcher: it takes all tokens but the last, which is the one sampled."""
    sample = _sample(queue, slot, matcher.tokens[-1], now, follows=matcher)
    sample.grammar = matcher.grammar.id, len(sample.options) - 4 * len(matcher.tokens)
    sample.named, sample.sent = matcher.grammar, True
    return sample


def _sample(
    queue: CommandQueue, slot: int, token: int, now: float, *,
    ended: int = 0, prompt: Iterable[int] | None = None, output: Iterable[int] = (), follows: Matcher | None = None,
) -> Sample:  # fmt: skip
    head = np.zeros(1, SAMPLE_OPTIONS)
    head["flags"], head["n_allowed"], head["repetition"] = SampleFlag.ALLOWED, 1, 1.0
    lists = [np.array([token], np.uint32)]
    if prompt is not None:
        head["flags"] = SampleFlag.ALLOWED | SampleFlag.PENALTIES | SampleFlag.HISTORY
        lists += [np.fromiter(ids, np.uint32) for ids in (prompt, output)]
        head["n_prompt"], head["n_output"] = len(lists[1]), len(lists[2])
    if follows is not None:
        head["flags"] = SampleFlag.ALLOWED | SampleFlag.GRAMMAR
        lists.append(np.array([0, *follows.tokens[:-1]], np.uint32))  # the grammar's number on the engine comes first
    stop = token.to_bytes(4, "little") if ended else b""
    params = _GREEDY.pack(0.0, 0, 1.0, 0.0, 0, 0, len(stop) // 4)
    options = head.tobytes() + np.concatenate(lists).astype("<u4").tobytes()
    return Sample(queue, _record(queue, SCRATCH, slot), now, params, stop, options)
