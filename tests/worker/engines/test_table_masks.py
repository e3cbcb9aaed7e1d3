"""Masked tables give what page lists with the same mask bits give, without the dropped pages, on every attention."""

from __future__ import annotations

import numpy as np
import pytest

from tartlet_common.engine.step import HOLE, MaskTable, Status
from tartlet_common.errors.registry import InvalidArgument
from tartlet_worker.kernels import available
from tests.worker.driver import Driver, changes, embed_batch, forward_batch, i32, mask_batch, u32
from tests.worker.engines.test_page_tables import ENGINES, SIZE, drive
from tests.worker.seeds import rng as fresh

ROWS = 8
LENGTH = 27


def mask_table(*commands: tuple[int, int, int, bool]) -> MaskTable:
    """Commands: table, first slot, slots, whether they are hidden."""
    table, first, count, hidden = (list(column) for column in zip(*commands, strict=True))
    return MaskTable(u32([1] * len(table)), i32(table), i32(first), i32(count), np.array(hidden, np.uint8))


class Masked:
    """A table and the list of its pages, filled alike, whose slots are hidden and dropped alike."""

    def __init__(self, name: str, dtype: str, options: dict[str, str], seed: int) -> None:
        self.rng = fresh(f"masks {name} {dtype} {seed}")
        # torch rounds to bfloat16 after each operation, and the two engines cut their batches differently
        self.tolerance = 0.03 if dtype == "bfloat16" and not available() else 2e-5
        self.tables, self.lists = drive(name, dtype, options), drive(name, dtype, options)
        self.rows: list[int] = self.rng.permutation(64)[:ROWS].tolist()
        self.pages = list(self.rows)
        self.hidden = np.zeros((ROWS, SIZE), np.bool_)
        self.tables.ok_step(tables=changes((0, 0, 0, self.rows)))
        prompt = self.rng.integers(0, 300, LENGTH)
        embeds = list(range(LENGTH))
        for driver in (self.tables, self.lists):
            driver.embed(prompt, embeds, embeds)
        self.tables.forward(table=0, iemb=embeds)
        self.lists.forward(ikv=self.pages, iemb=embeds, okv=self.pages)

    def hide(self, first: int, count: int, hide: bool) -> None:
        self.hidden.reshape(-1)[first : first + count] = hide
        self.tables.ok(mask_table((0, first, count, hide)))
        for page, marks in zip(self.pages, self.hidden, strict=True):
            self.lists.ok(mask_batch(page, sum(1 << o for o in range(SIZE) if marks[o])))

    def drop(self, first: int, count: int) -> None:
        self.rows[first : first + count] = [HOLE] * count
        self.tables.ok_step(tables=changes((0, 0, first, self.rows[first:])))

    def compare(self, tokens: int, *, masked: bool) -> None:
        """Compute tokens behind the prompt in both ways, and for tables also in a batch with a plain table."""
        embeds = list(range(40, 40 + tokens))
        for driver in (self.tables, self.lists):
            driver.embed([7] * tokens, embeds, range(LENGTH, LENGTH + tokens))
        mask = self.rng.random((tokens, LENGTH + tokens)) < 0.7 if masked else None
        kept = [page for page, row in zip(self.pages, self.rows, strict=True) if row != HOLE]
        wide = None
        if mask is not None:
            columns = [at * SIZE + o for at, row in enumerate(self.rows) if row != HOLE for o in range(SIZE)]
            padded = np.pad(mask[:, :LENGTH], ((0, 0), (0, ROWS * SIZE - LENGTH)))
            wide = np.concatenate([padded[:, columns], mask[:, LENGTH:]], axis=1)
        self.tables.ok_step(tables=changes((1, 1, 0, [min({*range(64)} - {*self.pages})])))
        self.tables.embed([9, 9], [50, 51], [0, 1])
        plain = {"table": 1, "iemb": [50, 51]}
        own = {"table": 0, "okv_offset": LENGTH, "iemb": embeds, "oemb": embeds, "mask": mask, "lane": 2}
        self.tables.ok(forward_batch([plain, own]))
        at = (len(kept) - ROWS) * SIZE + LENGTH
        self.lists.forward(ikv=kept, iemb=embeds, okv=kept, okv_offset=at, oemb=embeds, mask=wide)
        got, want = self.tables.logits(embeds), self.lists.logits(embeds)
        assert np.abs(got - want).max() <= self.tolerance * np.abs(want).max()


@pytest.mark.parametrize(("name", "dtype", "options"), ENGINES)
@pytest.mark.parametrize("masked", [False, True])
def test_masked_tables_agree_with_page_lists(name: str, dtype: str, options: dict[str, str], masked: bool) -> None:
    for seed in range(4):
        both = Masked(name, dtype, options, seed)
        rng = both.rng
        for _ in range(int(rng.integers(1, 4))):
            first = int(rng.integers(0, LENGTH - 1))
            both.hide(first, int(rng.integers(1, LENGTH - first)), bool(rng.random() < 0.7))
        if seed:
            first = int(rng.integers(0, 4))
            both.drop(first, int(rng.integers(1, 3)))
        both.compare(int(rng.integers(1, 4)), masked=masked)


def test_marks_follow_rows_through_changes() -> None:
    driver: Driver = drive("llama3-grouped", "float32", {"attention": "torch-gather"})
    tables = driver.engine.pools.tables
    driver.ok_step(tables=changes((0, 0, 0, [5, 6, 7])))
    driver.ok(mask_table((0, 1, 1, True), (0, 6, 3, True), (0, 7, 1, False)))
    assert np.flatnonzero(tables.hidden[0]).tolist() == [1, 6, 8]
    driver.ok_step(tables=changes((1, 0, 2, [9])))
    assert np.flatnonzero(tables.hidden[1]).tolist() == [1, 6], "a fork has those of the rows it shares"
    driver.ok_step(tables=changes((0, 0, 1, [HOLE, 7])))
    assert np.flatnonzero(tables.hidden[0]).tolist() == [1, 8], "a row that stays keeps its marks"
    driver.ok_step(tables=changes((0, 0, 1, [])))
    driver.ok_step(tables=changes((0, 0, 1, [6, 7])))
    assert np.flatnonzero(tables.hidden[0]).tolist() == [1], "a row that was cut has none when it comes again"
    driver.ok(mask_table((0, 1, 1, False)))
    driver.ok_step(tables=changes((1, 1, 0, [])))
    assert not tables.hidden
    driver.engine.reset()
    assert not tables.hidden


def test_a_mask_past_its_table_fails_alone() -> None:
    driver = drive("llama3-grouped", "float32", {"attention": "torch-gather"})
    driver.ok_step(tables=changes((0, 0, 0, [5, 6])))
    bad = mask_table((0, 0, 1, True), (0, 7, 2, True), (500, 0, 1, True))
    bad = MaskTable(u32([1, 2, 3]), bad.table, bad.first, bad.count, bad.hidden)
    answer = driver.run(bad)
    assert answer.status.tolist() == [Status.OK, Status.FAILED, Status.FAILED]
    assert answer.error.tolist() == [0, InvalidArgument.number, InvalidArgument.number]
    again = driver.run(embed_batch([{"embed": [0], "token": [1], "position": [0], "lane": 2}]))
    assert again.status.tolist() == [Status.REFUSED]
