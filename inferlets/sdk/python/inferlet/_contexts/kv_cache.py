"""The keys and values of a context: which tokens are in its pages, and the commands that compute them."""

from __future__ import annotations

from collections.abc import Sequence

from inferlet._contexts.pages import PageTable
from inferlet._queues.queue import Queue
from inferlet._values.types import Embed, Model, TokenSlot

CHUNK = 512
"""Tokens of one `forward` of a prompt: enough to keep an engine busy, with few embeds."""


class KvCache:
    """The pages of one context, and how many of its tokens are in them. Slot i holds token i."""

    __slots__ = ("_fixed", "_model", "_queue", "length", "pages")

    def __init__(self, queue: Queue, model: Model, pages: PageTable | None = None, length: int = 0) -> None:
        self._queue = queue
        self._model = model
        self._fixed: tuple[Embed, Embed, TokenSlot] | None = None
        self.pages = PageTable(queue, model.page_size) if pages is None else pages
        self.length = length
        """The number of tokens in the pages, those of recorded commands included."""

    def fork(self, queue: Queue, length: int) -> KvCache:
        """Make a cache on another queue that shares the first tokens."""
        return KvCache(queue, self._model, self.pages.fork(queue, length), length)

    def release(self) -> None:
        """Free the pages, embeds and slot that no other context holds."""
        self.pages.release()
        if self._fixed is not None:
            embed, output, slot = self._fixed
            self._queue.dealloc_emb([embed, output])
            self._queue.dealloc_slot([slot])

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
        queue, start = self._queue, self.length
        if start >= end:
            return
        self.pages.grow(end)
        embeds = queue.alloc_emb(min(CHUNK, self._model.max_batch_tokens, end - start))
        for at in range(start, end, len(embeds)):
            to = min(at + len(embeds), end)
            into = embeds[: to - at]
            queue.embed_txt(tokens[at:to], range(at, to), into)
            self._forward(at, into, [output] if output is not None and to == end else [])
        queue.dealloc_emb(embeds)
        self.length = end

    def _forward(self, at: int, embeds: Sequence[Embed], outputs: Sequence[Embed]) -> None:
        """Record one `forward` of `embeds`, the tokens from position `at` on, over all earlier tokens."""
        size, ids = self._model.page_size, self.pages.ids
        last = -(-(at + len(embeds)) // size)
        # The page table is an array of plain integers: it is packed as it is, and what it holds are pages.
        self._queue.forward(
            ids[: -(-at // size)],  # type: ignore[arg-type]
            embeds,
            ids[at // size : last],  # type: ignore[arg-type]
            outputs,
            okv_offset=at % size,
        )

    def decode(self, at: int, source: int | TokenSlot) -> None:
        """Record one decode step of the token of `source` at position `at`."""
        embed, output, _ = self.places()
        size = self._model.page_size
        if at >= len(self.pages) * size:
            self.pages.grow(at + 1)
        self._queue.decode(self.pages.ids, at, source, (embed, output), size)

    def end_at(self, num_tokens: int) -> None:
        """Note that the context has this many tokens. The last one is computed again, because its output is gone."""
        self.length = max(0, min(self.length, num_tokens - 1))

    def give_back_ahead(self, num_tokens: int, first: int) -> None:
        """Free the pages of steps that were dropped from ticket `first` on; a failed allocation of them is forgiven."""
        queue = self._queue
        told = queue.failure is not None and (queue.failure_seen or queue.failed_ticket < first)
        if not told and self.pages.trim(num_tokens):
            queue.reset()
