"""Random batches of commands of each class, for one implementation of attention against another."""

from __future__ import annotations

from typing import Any

import numpy as np

from tartlet_worker.attention.base import AttentionBatch, TableColumns
from tartlet_worker.pools import FAR, Pools
from tests.worker.seeds import rng as fresh

PAGES = 64
KINDS = ["decode", "append", "shuffled", "holes", "equal", "pages", "masked"]


class Batches:
    """Random batches: commands over lists of each kind, and over tables."""

    def __init__(self, seed: int, size: int, *, pages: int = PAGES, most: int = 3) -> None:
        """Begin.

        Args:
            seed: of the batches.
            size: tokens of a page.
            pages: that there are. Each command takes at most `most` and five more: four for its tokens, one unseen.
            most: pages of a context.
        """
        assert len(KINDS) * (most + 5) < pages, "a batch of as many commands as there are kinds may need more"
        self.rng, self.size, self.pages, self.most = fresh(f"flashinfer {seed} {size}"), size, pages, most
        self.free = self.rng.permutation(pages - 1).tolist()

    def command(self, kind: str) -> tuple[Any, Any, Any, Any]:
        """Query positions, pages, column positions and a mask or None."""
        rng, size = self.rng, self.size
        new = 1 if kind == "decode" else int(rng.integers(1, 5))
        context = int(rng.integers(0, self.most * size + 1))
        columns = context + new
        pages = [self.free.pop() for _ in range(-(-columns // size))]
        position = np.full(len(pages) * size, FAR, np.int32)
        position[:columns] = np.arange(columns) + (int(rng.integers(0, 9)) if rng.random() < 0.3 else 0)
        query = position[context:columns].copy()
        if kind == "shuffled":
            position[:context] = rng.permutation(position[:context])
        if kind == "holes" and context:
            position[rng.integers(0, context, 2)] = FAR
        if kind == "equal":
            position[context:columns] = query[:] = query[-1]
        if kind == "pages" and len(pages) > 1:  # lists in another order, with a page of which nothing is seen
            order = rng.permutation(len(pages))
            pages, position = [pages[i] for i in order], position.reshape(-1, size)[order].reshape(-1)
            pages.insert(1, self.free.pop())
            position = np.insert(position, size, np.full(size, FAR, np.int32))
        mask = None
        if kind == "masked":
            mask = (rng.random((new, len(position))) < 0.5) & (position < FAR)
        return query, pages, position, mask

    def draw(self, kinds: list[str], pools: Pools) -> AttentionBatch:
        """Return a batch of a command of each kind; commands over tables put their pages into those of `pools`."""
        made = [self.command(kind) for kind in kinds]
        over = np.array([kind in {"decode", "append"} and self.rng.random() < 0.5 for kind in kinds], np.bool_)
        for b in np.flatnonzero(over).tolist():
            query, pages, position, _ = made[b]
            first = position[0] if len(position) else 0
            made[b] = (query - first, pages, np.where(position < FAR, position - first, FAR), None)
            pools.tables.rows[b, : len(pages)] = pages
        pools.tables.version += 1
        width = max(len(pages) for _, pages, _, _ in made)
        listed = np.flatnonzero(~over)
        table = np.full((len(listed), width), self.pages, np.int32)
        positions = np.full((len(listed), width * self.size), FAR, np.int32)
        allowed: dict[int, Any] = {}
        for i, number in enumerate(listed.tolist()):
            b = int(number)
            _, pages, position, mask = made[b]
            table[i, : len(pages)], positions[i, : len(position)] = pages, position
            if mask is not None:
                allowed[b] = np.pad(mask, ((0, 0), (0, width * self.size - len(position))))
        row = np.cumsum(~over) - 1
        tables = None
        if over.any():
            numbers = np.where(over, np.arange(len(kinds)), -1).astype(np.int32)
            tables = TableColumns(numbers, np.where(over, -1, row), pools)
        return AttentionBatch(
            query_indptr=np.concatenate([[0], np.cumsum([len(query) for query, *_ in made])]),
            query_position=np.concatenate([query for query, *_ in made]).astype(np.int32),
            pages=table if len(listed) else np.zeros((0, 1), np.int32),
            num_pages=np.array([len(pages) for _, pages, _, _ in made], np.int32),
            column_position=positions if len(listed) else np.zeros((0, self.size), np.int32),
            allowed=allowed,
            tables=tables,
        )
