"""The keys and values of a context: which tokens are in its pages, and the commands that compute them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Literal

from inferlet._queues.queue import Queue
from inferlet._values.types import Adapter, Embed, Exported, KvPage, Model, PageTable, TokenSlot

CHUNK = 512
"""Tokens of one `forward` of a prompt: enough to keep an engine busy, with few embeds."""
LONG = 32 << 10
LONG_CHUNK = 2048
"""Tokens of one `forward` where more than `LONG` are missing: each `forward` is a step, and costs a step's way."""


class KvCache:
    """The page table of one context, and how many of its tokens are in the table. Slot i holds token i."""

    __slots__ = (
        "_adapter",
        "_fixed",
        "_holes",
        "_masked",
        "_model",
        "_outputs",
        "_queue",
        "_shared",
        "_slots",
        "_table",
        "dropped",
        "length",
        "num_rows",
    )

    def __init__(self, queue: Queue, model: Model, adapter: Adapter | None = None) -> None:
        self._queue = queue
        self._adapter = adapter
        self._model = model
        self._fixed: tuple[Embed, Embed, TokenSlot] | None = None
        self._table: PageTable | None = None
        self._outputs: list[Embed] = []  # of tokens that are verified together
        self._slots: list[TokenSlot] = []
        self._masked: list[tuple[int, int]] = []  # ranges of hidden tokens, apart from each other, in order
        self.dropped = 0  # tokens up to the end of the last row that was dropped
        self._holes: set[int] = set()  # rows that were dropped
        self._shared = 0  # tokens of the rows that forks share: they are never written again
        self.num_rows = 0
        self.length = 0
        """The number of tokens in the table, those of recorded commands included."""

    def fork(self, queue: Queue, length: int) -> KvCache:
        """Make a cache on another queue that shares the rows which the first `length` tokens fill.

        The tokens above these rows are computed again, because shared rows are full.
        """
        child = KvCache(queue, self._model, self._adapter)
        rows = length // self._model.page_size
        if rows and self._table is not None:
            child.length, child.num_rows = rows * self._model.page_size, rows
            child._table = queue.table(source=self._table, keep_tokens=child.length)
            child._shared, self._shared = child.length, max(self._shared, child.length)
        child.dropped, child._holes, child._masked = self.dropped, set(self._holes), list(self._masked)
        child._mask_from(child.length)
        return child

    def export(self, tokens: Sequence[int], name: str, ttl_s: int) -> asyncio.Future[Exported]:
        """Record the commands that compute the tokens of the context but the last, and name them all."""
        self.compute(tokens, len(tokens) - 1)
        count = min(self.length, len(tokens))
        table = self._table if count else None
        return self._queue.export_kvpage(table, name, num_tokens=count, tail=tokens[count:], ttl_s=ttl_s)

    def release(self) -> None:
        """Free the table, the embeds and the slot."""
        if self._table is not None:
            self._queue.table(self._table)
            self._table, self.num_rows = None, 0
        if self._fixed is not None:
            embed, output, slot = self._fixed
            self._queue.dealloc_emb([embed, output])
            self._queue.dealloc_slot([slot])
        self._queue.dealloc_emb(self._outputs)
        self._queue.dealloc_slot(self._slots)

    def places(self) -> tuple[Embed, Embed, TokenSlot]:
        """Return the input embed, the output embed and the token slot of decoding."""
        if self._fixed is None:
            embed, output = self._queue.alloc_emb(2)
            [slot] = self._queue.alloc_slot(1)
            self._fixed = (embed, output, slot)
        return self._fixed

    def compute(self, tokens: Sequence[int], end: int, output: Embed | None = None) -> None:
        """Record the commands that compute the missing tokens of tokens[:end].

        Args:
            tokens: the tokens of the context.
            end: how many of them shall be in the pages.
            output: the embed that takes the output of the last one.
        """
        start = self.length
        if start < end:
            self.write(tokens[start:end], start, output)
            self.length = end

    def write(self, tokens: Sequence[int], start: int, output: Embed | None = None) -> None:
        """Record the commands that compute tokens at positions from `start` on.

        Args:
            tokens: at least one. Everything before them is in the table, or commands that put it there are recorded.
            start: the position of the first one.
            output: the embed that takes the output of the last one.
        """
        queue, end = self._queue, start + len(tokens)
        table = self._grow(end)
        chunk = LONG_CHUNK if end - start > LONG else CHUNK
        embeds = queue.alloc_emb(min(chunk, self._model.max_batch_tokens, end - start))
        at = start
        while at < end:
            # Tokens of one command see each other, so what follows hidden tokens is computed by another command.
            to = min(at + len(embeds), end, *(last for _, last in self._masked if last > at))
            into = embeds[: to - at]
            queue.embed_txt(tokens[at - start : to - start], range(at, to), into)
            outputs = [output] if output is not None and to == end else []
            queue.forward_table(table, at, into, outputs, adapter=self._adapter)
            at = to
        queue.dealloc_emb(embeds)

    def verify(self, tokens: Sequence[int], drafts: Sequence[int]) -> list[Embed]:
        """Record the commands that compute the last token and the drafts behind it in one pass.

        Args:
            tokens: the tokens of the context, at least one.
            drafts: tokens that may follow. Their keys and values are behind the context's own.

        Returns:
            The output embeds [1 + len(drafts)] of the last token and of the drafts, until the next call.
        """
        queue, last, count = self._queue, len(tokens) - 1, len(drafts) + 1
        self.compute(tokens, last)
        self.length = last
        table = self._grow(last + count)
        if len(self._outputs) < count:
            self._outputs += queue.alloc_emb(count - len(self._outputs))
        embeds = self._outputs[:count]
        queue.embed_txt([tokens[-1], *drafts], range(last, last + count), embeds)
        queue.forward_table(table, last, embeds, embeds, adapter=self._adapter)
        return embeds

    def slots(self, count: int) -> list[TokenSlot]:
        """Return token slots for the samples of a verification."""
        if len(self._slots) < count:
            self._slots += self._queue.alloc_slot(count - len(self._slots))
        return self._slots[:count]

    def cut(self, num_tokens: int) -> None:
        """Keep the first tokens, and free the rows behind them. The last token is computed again.

        A row that forks share is given up if it would be written, so its tokens are computed again too.
        """
        size = self._model.page_size
        rows = -(-num_tokens // size)
        self.end_at(num_tokens)
        if self.length < self._shared:
            rows = self.length // size
            self.length = self._shared = rows * size
        masked, self._masked = self._masked, [(start, min(end, num_tokens)) for start, end in self._masked]
        self._masked = [(start, end) for start, end in self._masked if start < end]
        if masked and masked[-1][1] > num_tokens:
            self._mark("show", num_tokens, min(masked[-1][1], min(rows, self.num_rows) * size))
        if self._table is not None and rows < self.num_rows:
            self._queue.table(self._table, keep_tokens=rows * size)
            self._table, self.num_rows = self._table if rows else None, rows
            self._mask_from(rows * size)

    @property
    def num_pages(self) -> int:
        """The rows that have pages."""
        return self.num_rows - len(self._holes)

    def mask(self, start: int, end: int, *, hide: bool) -> None:
        """Hide tokens [start, end) from later computations, or show them again."""
        self._grow(end)
        self._mark("hide" if hide else "show", start, end)
        apart = [span for span in self._masked if span[1] < start or span[0] > end]
        touched = [span for span in self._masked if span not in apart]
        if hide:
            new = [(min([start, *(a for a, _ in touched)]), max([end, *(b for _, b in touched)]))]
        else:
            new = [span for a, b in touched for span in ((a, min(b, start)), (max(a, end), b)) if span[0] < span[1]]
        self._masked = sorted([*apart, *new])

    def drop(self, start: int, end: int) -> None:
        """Free the rows that lie within tokens [start, end), and hide the other tokens."""
        size = self._model.page_size
        first, last = -(-start // size), end // size
        if first >= last:
            self.mask(start, end, hide=True)
            return
        new = [row for row in range(first, last) if row not in self._holes]
        if new:
            table = self._grow(end)
            self._queue.mask_table(table, new[0] * size, (last - new[0]) * size, "drop")
            self._holes.update(new)
            self.dropped = max(self.dropped, last * size)
        for a, b in ((start, first * size), (last * size, end)):
            if a < b and not any(x <= a and b <= y for x, y in self._masked):
                self.mask(a, b, hide=True)

    def copy_out(self, count: int, pages: Sequence[KvPage]) -> None:
        """Record the copies of the first `count` slots to pages, which are empty. Slots that are hidden stay empty."""
        size = self._model.page_size
        for start, end in _visible(count, self._masked):
            for at in _cut_at_rows(start, end, size):
                row, offset = divmod(at.start, size)
                if row not in self._holes and self._table is not None:
                    self._queue.copy_table(self._table, at.start, pages[row], offset=offset, size=len(at))

    def copy_in(self, count: int, pages: Sequence[KvPage]) -> None:
        """Record the copies of the first `count` slots of pages into the table, which is empty."""
        for at in _cut_at_rows(0, count, self._model.page_size):
            table = self._grow(count)
            page = pages[at.start // self._model.page_size]
            self._queue.copy_table(table, at.start, page, size=len(at), into="table")
        self.length = count

    def _mark(self, what: Literal["hide", "show"], start: int, end: int) -> None:
        if start < end and self._table is not None:
            self._queue.mask_table(self._table, start, end - start, what)

    def _mask_from(self, first: int) -> None:
        """Hide the masked tokens from `first` on in rows that are new."""
        for start, end in self._masked:
            if end > first:
                self._grow(end)
                self._mark("hide", max(start, first), end)

    def _grow(self, num_tokens: int) -> PageTable:
        """Return the table, with rows for `num_tokens`."""
        have, size = self.num_rows, self._model.page_size
        table = self._table
        if table is None or num_tokens > have * size:
            self.num_rows = -(-num_tokens // size)
            table = self._queue.table(table, keep_tokens=have * size, new_rows=self.num_rows - have)
            self._table = table
        return table

    def decode(self, at: int, source: int | TokenSlot) -> None:
        """Record one decode step of the token of `source` at position `at`."""
        embed, output, _ = self.places()
        self._queue.decode(self._grow(at + 1), at, source, (embed, output), self._adapter or 0)

    def end_at(self, num_tokens: int) -> None:
        """Note that the context has this many tokens. The last one is computed again, because its output is gone."""
        self.length = max(0, min(self.length, num_tokens - 1))

    def give_back_ahead(self, num_tokens: int, first: int) -> None:
        """Free the rows of steps that were dropped from ticket `first` on; a failed allocation of them is forgiven."""
        queue, size = self._queue, self._model.page_size
        told = queue.failure is not None and (queue.failure_seen or queue.failed_ticket < first)
        rows = -(-num_tokens // size)
        if not told and self._table is not None and rows < self.num_rows:
            queue.table(self._table, keep_tokens=rows * size)
            self.num_rows = rows
            queue.reset()


def _visible(count: int, hidden: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of the first `count` slots that aren't hidden; hidden ranges are apart, in order."""
    at = 0
    for start, end in hidden:
        if at < min(start, count):
            yield at, min(start, count)
        at = end
    if at < count:
        yield at, count


def _cut_at_rows(start: int, end: int, size: int) -> Iterator[range]:
    """Yield the parts of a range of slots that lie within one row each."""
    while start < end:
        to = min(end, (start // size + 1) * size)
        yield range(start, to)
        start = to
