"""Notes settled commands in a program's book, in the order in which its engine executed them.

A place keeps a log: the commands that were executed or sent since the oldest one whose outcome isn't known. `settle`
takes the commands with an outcome off its front. What then stays in the log is what an engine's loss undoes.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tartlet_common.abi import SAMPLE_OPTIONS, SampleFlag
from tartlet_common.engine import sample_options
from tartlet_common.engine.step import Status
from tartlet_control.calls.embed import EmbedTxt
from tartlet_control.calls.forward import Forward
from tartlet_control.calls.kv import Alloc, CopyKvPage, Dealloc, MaskKvPage
from tartlet_control.calls.names import Export, NameCall
from tartlet_control.calls.output import GetNextDist, Sample
from tartlet_control.calls.queue import Faulty, Reset, Synchronize
from tartlet_control.calls.table_copies import CopyTable
from tartlet_control.calls.table_masks import DropRows, MaskTable
from tartlet_control.calls.tables import ForwardTable, Reused, Share, Table
from tartlet_control.tables.grammars import Matcher
from tartlet_control.tables.ledger import EMBEDS, PAGES, SLOTS
from tartlet_control.tables.lineage import ENDED, Book, EmbedContent, History, Line
from tartlet_control.tables.programs import Command

_SKIPPED: Final = int(Status.SKIPPED)
_FLAGS_BYTES: Final = SAMPLE_OPTIONS.fields["flags"][0].itemsize if SAMPLE_OPTIONS.fields else 4
_SHORT_BYTES: Final = 256
"""A generation repeats its options at every token. Longer ones come once."""

MASKED: Final = "forward_table with a mask"
BEHIND_A_GAP: Final = "forward_table behind slots that aren't plain"
OTHER_POSITIONS: Final = "forward_table of embeds at other positions than their slots"
OTHER_ADAPTER: Final = "forward_table under another adapter than the slots before"
NO_TOKENS: Final = "forward_table of embeds that hold no tokens"


def settle(book: Book, log: deque[Command]) -> None:
    """Note the commands at the front of the log whose outcome is known, and take them off."""
    while log:
        outcome = log[0].outcome
        if outcome is None:
            return
        command = log.popleft()
        _NOTES[type(command)](book, command, outcome)


def _embed_txt(book: Book, c: EmbedTxt, outcome: Any) -> None:
    embeds = book.embeds
    if type(outcome) is not tuple:
        _not_run(book, c, c.embeds, outcome)
    elif not c.from_slots:
        embeds.update(zip(c.embeds, zip(c.sources, c.positions, strict=True), strict=True))
    else:
        slots = book.slots
        for embed, slot, position in zip(c.embeds, c.sources, c.positions, strict=True):
            held = slots.get(slot)
            embeds[embed] = (0 if held is None else held[0], position)


def _not_run(book: Book, c: Command, embeds: list[int], status: int) -> None:
    """Note a command that was skipped, was refused or failed."""
    if status == _SKIPPED:
        for embed in embeds:
            book.embeds[embed] = ENDED
    else:
        book.failed.add(c.queue.id)


def _forward_table(book: Book, c: ForwardTable, outcome: Any) -> None:
    if type(outcome) is not tuple:
        _not_run(book, c, c.oemb, outcome)
        return
    line = book.tables[c.table]
    start, size = c.okv_offset, c.queue.spec.page_size
    embeds = book.embeds
    follows = start == line.length == line.plain and line.limit is None and c.adapter == line.adapter
    if c.tokens == 1 and follows and not c.mask:  # a decode step
        content = embeds[c.iemb[0]]
        if content is not None and len(content) == 2 and content[1] == start:
            line.append(content[0], size)
            for embed in c.oemb:
                embeds[embed] = (line, start, line.writes)
            return
    contents = [embeds[embed] for embed in c.iemb]
    why = _why_not_plain(c, line, contents)
    if why:
        line.spoil(start, c.tokens, why, c.adapter)
        for embed in c.oemb:
            embeds[embed] = (why,)
        return
    line.write(start, [content[0] for content in contents], size, c.adapter)  # type: ignore[index,misc]
    for embed, slot in zip(c.oemb, range(line.length - len(c.oemb), line.length), strict=True):
        embeds[embed] = (line, slot, line.writes)


def _why_not_plain(c: ForwardTable, line: Line, contents: list[EmbedContent | None]) -> str:
    start = c.okv_offset
    if c.mask:
        return MASKED
    if start > line.plain:
        return line.why if not line.is_plain and line.why else BEHIND_A_GAP
    if start and c.adapter != line.adapter:
        return OTHER_ADAPTER
    for slot, content in enumerate(contents, start):
        if content is None or len(content) != 2:
            return NO_TOKENS
        if content[1] != slot:
            return OTHER_POSITIONS
    return ""


def _forward(book: Book, c: Forward, outcome: Any) -> None:
    if type(outcome) is not tuple:
        _not_run(book, c, c.oemb, outcome)
        return
    for page in c.okv:
        book.pages[page] = "forward"
        if c.adapter:
            book.adapters[page] = c.adapter
    for embed in c.oemb:
        book.embeds[embed] = ("forward",)


def _copy(book: Book, c: CopyKvPage, outcome: Any) -> None:
    if type(outcome) is tuple:
        book.pages[c.pages[1]] = "copy_kvpage"
    else:
        _not_run(book, c, [], outcome)


def _copy_table(book: Book, c: CopyTable, outcome: Any) -> None:
    if type(outcome) is not tuple:
        _not_run(book, c, [], outcome)
    elif c.into_table:
        book.tables[c.table].spoil(c.first, c.length, "copy_table")
    else:
        book.pages[c.page] = "copy_table"


def _mask(book: Book, c: MaskKvPage, outcome: Any) -> None:
    if type(outcome) is tuple:
        book.pages[c.page] = "mask_kvpage"
    else:
        _not_run(book, c, [], outcome)


def _mask_table(book: Book, c: MaskTable, outcome: Any) -> None:
    if type(outcome) is tuple:
        book.tables[c.table].hide(c.first, "mask_table")
    else:
        _not_run(book, c, [], outcome)


def _dist(book: Book, c: GetNextDist, outcome: Any) -> None:
    if type(outcome) is not tuple:
        _not_run(book, c, [], outcome)


def _sample(book: Book, c: Sample, outcome: Any) -> None:
    held = book.slots.get(c.slot)
    history = None if held is None else held[2]
    if type(outcome) is tuple:
        token, ended = outcome[0], outcome[1]
        if c.options and int.from_bytes(c.options[:_FLAGS_BYTES], "little") & SampleFlag.GRAMMAR:
            _follow(book, c, token)
        if c.options and int.from_bytes(c.options[:_FLAGS_BYTES], "little") & SampleFlag.PENALTIES:
            history = _history(c, history)
            history.output.append(token)
        book.slots[c.slot] = (token, ended, history)
    elif outcome == _SKIPPED:
        book.slots[c.slot] = (0 if held is None else held[0], 1, history)
    else:
        book.failed.add(c.queue.id)


def _follow(book: Book, c: Sample, token: int) -> None:
    """Note the tokens that the matcher of a slot has taken: those that the sample brought, and its own."""
    read = sample_options.read_again if len(c.options) <= _SHORT_BYTES else sample_options.read
    following = read(c.options).grammar
    assert following is not None, "the flag is set"
    number, before = following
    if not number:
        matcher = book.matchers.get(c.slot)
    else:
        matcher = None if c.named is None else book.begin_matcher(c.slot, Matcher(c.named))
    if matcher is not None:
        matcher.grammar.known = True
        if matcher.take([*before.tolist(), token]):
            matcher = None
    book.matchers[c.slot] = matcher


def _history(c: Sample, history: History | None) -> History:
    """Return the history to which a penalised sample adds its token."""
    given = sample_options.read(c.options).history
    if given is not None:
        prompt, output = (array("I", np.asarray(ids, np.uint32).tobytes()) for ids in given)
        return History(prompt, output)
    return History(array("I"), array("I")) if history is None else history


# ---- control's own commands -----------------------------------------------------------------------------------------


def _alloc(book: Book, c: Alloc, _: Any) -> None:
    if c.pool == PAGES:
        book.pages.update(dict.fromkeys(c.ids, ""))
    else:
        (book.embeds if c.pool == EMBEDS else book.slots).update(dict.fromkeys(c.ids))


def _dealloc(book: Book, c: Dealloc, _: Any) -> None:
    held: dict[int, Any] = book.pages if c.pool == PAGES else book.embeds if c.pool == EMBEDS else book.slots
    for i in c.ids:
        held.pop(i, None)
    if c.pool == PAGES and book.adapters:
        book.adapters = {page: number for page, number in book.adapters.items() if page in book.pages}
    if c.pool == SLOTS:
        for slot in c.ids:
            book.matchers.pop(slot, None)


def _table(book: Book, c: Table, _: Any) -> None:
    size, tables = c.queue.spec.page_size, book.tables
    taken = tables.pop(share_key(c), None)
    line, keep = tables.get(c.table), c.keep_tokens // size
    if c.queue.id in book.failed if c.shrunk is None else c.shrunk:
        if line is not None:
            line.cut(keep if c.source == c.table else 0, size)
    elif c.source == c.table:
        if line is None:
            line = tables[c.table] = Line(c.queue.id)
        line.cut(keep, size)
        line.add(c.new_rows)
    else:
        if taken is None:
            taken = tables[c.source].fork(keep, size, c.queue.id)
        line = tables[c.table] = taken
        line.add(c.new_rows)
    if line is not None and not line.rows:
        tables.pop(c.table, None)


def _drop(book: Book, c: DropRows, _: Any) -> None:
    book.tables[c.table].hide(c.first, "mask_table")


def _share(book: Book, c: Share, _: Any) -> None:
    size = c.queue.spec.page_size
    book.tables[share_key(c.by)] = book.tables[c.by.source].fork(c.by.keep_tokens // size, size, c.by.queue.id)


def _reused(book: Book, c: Reused, _: Any) -> None:
    if c.queue.id not in book.failed:  # else the forwards behind it are refused
        book.tables[c.table].write(c.start, c.values, c.queue.spec.page_size, c.adapter)


def _reset(book: Book, c: Reset, _: Any) -> None:
    book.failed.discard(c.queue.id)


def _faulty(book: Book, c: Faulty, _: Any) -> None:
    book.failed.add(c.queue.id)
    book.tables.pop(-1 - c.ticket, None)  # if the command was a fork


def _nothing(book: Book, c: Command, _: Any) -> None:
    return


def share_key(command: Table) -> int:
    """Return the number of the rows that a `table` has taken of its source, among the tables of its program.

    The number is negative, as programs' own numbers aren't.
    """
    return -1 - command.ticket


_NOTES: Final[dict[type[Command], Callable[[Book, Any, Any], None]]] = {
    EmbedTxt: _embed_txt,
    ForwardTable: _forward_table,
    Forward: _forward,
    CopyKvPage: _copy,
    CopyTable: _copy_table,
    MaskKvPage: _mask,
    MaskTable: _mask_table,
    GetNextDist: _dist,
    Sample: _sample,
    Alloc: _alloc,
    Dealloc: _dealloc,
    Table: _table,
    DropRows: _drop,
    Share: _share,
    Reused: _reused,
    Reset: _reset,
    Faulty: _faulty,
    Synchronize: _nothing,
    Export: _nothing,
    NameCall: _nothing,
}
