"""Tells what a program holds from its commands and answers alone, in the plainest way: an oracle for books.

It shares no code with books, their notes and the parsers of calls, so a mistake in these shows as a difference. A table
is a list of the tokens in its slots. Nothing is shared or shortened to save time or memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from tartlet_common.abi import QUEUED_OPS, SAMPLE_PARAMS, CopyInto, Event, Op, Record, SampleFlag
from tartlet_common.engine import sample_options
from tartlet_common.errors.registry import InvalidArgument, UnknownOperation, UnknownResource

Sent = tuple[Record, memoryview]
Cell = tuple[int | None, object]
"""What a slot of a table holds: a token, or None if tokens alone don't say it, and the forward that wrote the slot."""

_ALLOCS: Final = {Op.ALLOC_KVPAGE, Op.ALLOC_EMB, Op.ALLOC_SLOT}
_DEALLOCS: Final = {Op.DEALLOC_KVPAGE, Op.DEALLOC_EMB, Op.DEALLOC_SLOT}
_CANCELLED: Final = QUEUED_OPS - _ALLOCS - _DEALLOCS - {Op.TABLE, Op.RESET}
_POISON_FROM_ANYWHERE: Final = {InvalidArgument.number, UnknownOperation.number}
"""Errors with which a call that takes no turn in its queue fails there all the same."""
LOST: Final = ("lost",)
"""What an embed holds that can't be computed again."""


@dataclass(slots=True)
class Told:
    """What a program was told about one command."""

    value: Record | None = None
    skipped: bool = False
    refused: bool = False
    failed: int = 0
    """The number of the error with which it failed as the first one of its queue."""


@dataclass(slots=True, eq=False)
class Table:
    """A page table."""

    queue: int
    rows: list[object] = field(default_factory=list)
    """Stands for each row; tables that share a row have the same one."""
    cells: list[Cell] = field(default_factory=list)
    shared: int = 0
    """Leading rows that another table has or had."""
    unknown: int | None = None
    """The first slot whose content tokens alone don't say."""
    hidden: int | None = None
    """The first slot that was hidden, shown or dropped."""
    adapter: int = 0

    @property
    def plain(self) -> int:
        """How many leading slots hold what the tokens in them say."""
        return min(end for end in (self.unknown, self.hidden, len(self.cells)) if end is not None)

    def write(self, start: int, tokens: list[int | None], forward: object) -> None:
        """Write from a slot on; what lay behind that slot is gone."""
        if None in tokens:
            begins = min(start, len(self.cells))  # slots before `start` may never have been written
            self.unknown = begins if self.unknown is None else min(begins, self.unknown)
        else:
            self.unknown = None
        self.cells += [(None, forward)] * (start - len(self.cells))
        self.cells[start:] = [(token, forward) for token in tokens]

    def cut(self, rows: int, size: int) -> None:
        """Keep the first rows, of `size` slots each."""
        if rows < len(self.rows):
            end = rows * size
            del self.rows[rows:], self.cells[end:]
            self.shared = min(self.shared, rows)
            self.unknown, self.hidden = _before(end, self.unknown), _before(end, self.hidden)

    def fork(self, rows: int, size: int, queue: int) -> Table:
        """Return a table of another queue that shares the first rows."""
        self.shared = max(self.shared, rows)
        end = rows * size
        unknown, hidden = _before(end, self.unknown), _before(end, self.hidden)
        return Table(queue, self.rows[:rows], self.cells[:end], rows, unknown, hidden, self.adapter)


def _before(end: int, slot: int | None) -> int | None:
    return slot if slot is not None and slot < end else None


class Oracle:
    """What a program holds on one engine."""

    def __init__(self, page_size: int) -> None:
        """Begin with nothing. `page_size`: slots of a row."""
        self.tables: dict[int, Table] = {}
        self.embeds: dict[int, Any] = {}
        self.slots: dict[int, tuple[int, int, tuple[list[int], list[int]] | None] | None] = {}
        self.pages: dict[int, str] = {}
        self.failed: set[int] = set()
        self.matchers: dict[int, tuple[int, bytes, list[int]]] = {}
        self._grammars: dict[int, tuple[int, bytes]] = {}
        self._size = page_size

    def content(self) -> dict[str, Any]:
        """Return all that is held, in the form of `comparing.content`."""
        numbers: dict[object, int] = {}

        def of(table: Table) -> Any:
            rows = [numbers.setdefault(row, len(numbers)) for row in table.rows]
            plain, length = table.plain, len(table.cells)
            is_plain = plain == length and table.hidden is None
            tokens = [token for token, _ in table.cells[:plain]]
            return table.queue, length, plain, table.hidden, table.shared, is_plain, rows, tokens, table.adapter

        tables = {n: of(self.tables[n]) for n in sorted(self.tables)}
        return {
            "tables": tables,
            "embeds": {i: self._held(embed) for i, embed in self.embeds.items()},
            "slots": dict(self.slots),
            "pages": dict(self.pages),
            "failed": set(self.failed),
            "matchers": dict(self.matchers),
        }

    def _held(self, embed: Any) -> Any:
        if embed is None or len(embed) != 3:
            return embed
        table, slot, forward = embed  # the output of a forward
        number = next((n for n, each in self.tables.items() if each is table), None)
        return number, slot, number is not None and slot < table.plain and table.cells[slot][1] is forward

    # ---- one command after the other ------------------------------------------------------------------------------

    def take(self, record: Record, payload: memoryview, told: Told) -> None:
        """Do what a command that has ended has done.

        Raises:
            ValueError: the program was told something else.
        """
        if told.failed and (record.op in QUEUED_OPS or told.failed in _POISON_FROM_ANYWHERE):
            if told.failed == UnknownResource.number:  # freeing frees what it can
                self._free(record, payload)
            self.failed.add(record.queue)
        elif record.op == Op.RESET:
            self.failed.discard(record.queue)
        elif record.queue in self.failed and told.value is None:
            self._free(record, payload)
            if record.op == Op.TABLE:
                self._table(record, payload, shrinks=True)
        elif not (told.failed or told.refused):
            self._execute(record, payload, told)

    def _execute(self, record: Record, payload: memoryview, told: Told) -> None:
        if record.op in _ALLOCS:
            held: dict[int, Any] = self._pool(record.op)
            held.update(dict.fromkeys(_words(payload), "" if record.op == Op.ALLOC_KVPAGE else None))
        elif record.op in _DEALLOCS:
            self._free(record, payload)
        elif record.op == Op.TABLE:
            self._table(record, payload)
        elif record.op == Op.GRAMMAR:
            self._grammars[record.a] = record.b, bytes(payload)
        elif record.op == Op.DEALLOC_GRAMMAR:
            self._grammars.pop(record.a, None)
        else:
            skipped = self._compute(record, payload, told.value)
            if told.skipped != skipped and (told.skipped or told.value is not None):
                raise ValueError(f"command {record.ticket} was told {told}, though it was skipped: {skipped}")

    def _compute(self, record: Record, payload: memoryview, value: Record | None) -> bool:
        """Do what an engine has done. Returns whether it has skipped the command."""
        match record.op:
            case Op.EMBED_TXT:
                return self._embed_txt(record, _words(payload))
            case Op.FORWARD:
                return self._forward(record, payload)
            case Op.FORWARD_TABLE:
                return self._forward_table(record, payload)
            case Op.SAMPLE:
                return self._sample(record, payload, value)
            case Op.GET_NEXT_DIST:
                return any(self.embeds.get(embed) == () for embed in _words(payload))
            case Op.COPY_KVPAGE:
                self.pages[_words(payload)[1]] = "copy_kvpage"
            case Op.COPY_TABLE:
                page, _, into = _words(payload)
                if into == CopyInto.TABLE:
                    self.tables[record.a].write(record.b, [None] * record.c, object())
                else:
                    self.pages[page] = "copy_table"
            case Op.MASK_KVPAGE:
                self.pages[record.a] = "mask_kvpage"
            case Op.MASK_TABLE:
                table = self.tables[record.a]
                table.hidden = record.b if table.hidden is None else min(table.hidden, record.b)
        return False

    def _pool(self, op: int) -> dict[int, Any]:
        if op in {Op.ALLOC_KVPAGE, Op.DEALLOC_KVPAGE}:
            return self.pages
        return self.embeds if op in {Op.ALLOC_EMB, Op.DEALLOC_EMB} else self.slots

    def _free(self, record: Record, payload: memoryview) -> None:
        """Free what the program holds, if the command is one that frees."""
        for i in _words(payload) if record.op in _DEALLOCS else ():
            self._pool(record.op).pop(i, None)
            if record.op == Op.DEALLOC_SLOT:
                self.matchers.pop(i, None)

    def _table(self, record: Record, payload: memoryview, *, shrinks: bool = False) -> None:
        number, rows = record.a, record.b // self._size
        source = _words(payload)[0] if len(payload) else number
        table = self.tables.get(number)
        if shrinks:
            if table is not None:
                table.cut(rows if source == number else 0, self._size)
        elif source == number:
            table = self.tables.setdefault(number, Table(record.queue))
            table.cut(rows, self._size)
            table.rows += [object() for _ in range(record.c)]
        else:
            table = self.tables[number] = self.tables[source].fork(rows, self._size, record.queue)
            table.rows += [object() for _ in range(record.c)]
        if table is not None and not table.rows:
            self.tables.pop(number, None)

    def _embed_txt(self, record: Record, words: list[int]) -> bool:
        n = record.a
        embeds, sources, positions = words[:n], words[n : 2 * n], words[2 * n :]
        if record.b:
            held = [self.slots.get(slot) or (0, 0, None) for slot in sources]
            if any(ended for _, ended, _ in held):
                self.embeds |= dict.fromkeys(embeds, ())
                return True
            sources = [token for token, _, _ in held]
        self.embeds |= zip(embeds, zip(sources, positions, strict=True), strict=True)
        return False

    def _forward(self, record: Record, payload: memoryview) -> bool:
        n_ikv, n_iemb, n_okv, n_oemb, *ids = _words(payload[: len(payload) & ~3])
        at, end = n_ikv + n_iemb, n_ikv + n_iemb + n_okv
        okv, oemb = ids[at:end], ids[end : end + n_oemb]
        if any(self.embeds.get(embed) == () for embed in ids[n_ikv:at]):
            self.embeds |= dict.fromkeys(oemb, ())
            return True
        self.pages |= dict.fromkeys(okv, "forward")
        self.embeds |= dict.fromkeys(oemb, LOST)
        return False

    def _forward_table(self, record: Record, payload: memoryview) -> bool:
        n_iemb, n_oemb, adapter, *ids = _words(payload[: len(payload) & ~3])
        table, start, has_mask = self.tables[record.a], record.b, record.c
        inputs, outputs = [*map(self.embeds.get, ids[:n_iemb])], ids[n_iemb : n_iemb + n_oemb]
        if () in inputs:
            self.embeds |= dict.fromkeys(outputs, ())
            return True
        follows = start <= table.plain and (not start or adapter == table.adapter)
        in_place = [held is not None and len(held) == 2 and held[1] == start + i for i, held in enumerate(inputs)]
        is_plain = follows and all(in_place) and not has_mask
        if is_plain and not start:
            table.adapter = adapter
        forward = object()
        table.write(start, [held[0] if held and is_plain else None for held in inputs], forward)
        for slot, embed in enumerate(outputs, len(table.cells) - n_oemb):
            self.embeds[embed] = (table, slot, forward) if is_plain else LOST
        return False

    def _sample(self, record: Record, payload: memoryview, value: Record | None) -> bool:
        embed, slot = record.a, record.b
        token, _, history = self.slots.get(slot) or (0, 0, None)
        if self.embeds.get(embed) == ():
            self.slots[slot] = token, 1, history
            return True
        if value is None:
            raise ValueError(f"sample {record.ticket} has ended without an answer")
        n_stop = _words(payload[: SAMPLE_PARAMS.itemsize])[-1]
        if options := payload[SAMPLE_PARAMS.itemsize + 4 * n_stop :]:
            read = sample_options.read(options)
            if read.grammar is not None:
                self._follow(slot, read.grammar[0], [*read.grammar[1].tolist(), value.a])
            if int.from_bytes(options[:4], "little") & SampleFlag.PENALTIES:
                prompt, output = history or ([], [])
                if read.history is not None:
                    prompt, output = (ids.tolist() for ids in read.history)
                history = prompt, [*output, value.a]
        self.slots[slot] = value.a, value.b, history
        return False

    def _follow(self, slot: int, grammar: int, tokens: list[int]) -> None:
        if grammar:
            self.matchers[slot] = *self._grammars[grammar], tokens
        elif slot in self.matchers:
            kind, text, before = self.matchers[slot]
            self.matchers[slot] = kind, text, before + tokens


def retell(commands: Iterable[Sent], answers: Iterable[Sent], queues: Collection[int], page_size: int) -> Oracle:
    """Return what a program holds on one engine.

    Args:
        commands: the program's commands that have ended, in the order of their submission.
        answers: what the program was told, in order.
        queues: those of this engine.
        page_size: slots of a row.

    Raises:
        ValueError: the program was told something else than follows from its commands.
    """
    told: dict[int, Told] = {}
    for record, _ in answers:
        of = told.setdefault(record.ticket, Told())
        match record.op, record.flags & 1:
            case Event.RESULT, _:
                of.value = record
            case Event.SKIPPED, _:
                of.skipped = True
            case Event.FAILURE, 0:
                of.failed = record.a
            case _:
                of.refused = True  # or cancelled
    nothing = Told()
    oracle, made = Oracle(page_size), {0}
    for record, payload in _survivors(list(commands), told):
        of = told.get(record.ticket, nothing)
        if record.op == Op.CREATE_QUEUE and not of.failed:
            made.add(record.queue)
        elif record.queue in made and record.queue in queues:
            oracle.take(record, payload, of)
    return oracle


def _survivors(commands: list[Sent], told: dict[int, Told]) -> list[Sent]:
    """Return the commands without those that a `cancel` has dropped. One that failed had survived."""
    dropped: set[int] = set()
    for at, (cancel, _) in enumerate(commands):
        value = told[cancel.ticket].value if cancel.op == Op.CANCEL and cancel.ticket in told else None
        if value is not None and value.a:
            dropped.update(
                record.ticket
                for record, _ in commands[:at]
                if record.queue == cancel.queue
                and record.ticket >= value.a
                and record.op in _CANCELLED
                and not (record.ticket in told and told[record.ticket].failed)
            )
    return [sent for sent in commands if sent[0].ticket not in dropped]


def _words(payload: memoryview) -> list[int]:
    return memoryview(bytes(payload)).cast("I").tolist()
