"""Commands over page tables give what the same commands give over page lists, on every implementation of attention."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tartlet_common.engine.step import Status, Step, StepResult
from tartlet_worker.checkpoints.random_checkpoint import random_checkpoint
from tartlet_worker.kernels import available
from tartlet_worker.page_tables import PageTables
from tartlet_worker.torch_engine.loader import load_engine
from tests.worker.driver import Driver, changes, embed_batch, forward_batch, i32, sample_batch
from tests.worker.families import CONFIGS, checkpoint
from tests.worker.seeds import rng as fresh

ENGINES = [
    ("llama3-grouped", "float32", {"attention": "torch-gather"}),
    ("qwen2-window", "float32", {"attention": "torch-gather"}),
    ("qwen3-norms", "float32", {"attention": "torch-chunked"}),
    ("qwen2-window", "float32", {"attention": "c"}),
    ("qwen2-window", "float32", {"attention": "flashinfer"}),
    ("qwen2-window", "float32", {"attention": "triton"}),
    ("llama3-grouped", "bfloat16", {"kernels": "auto"}),
]
SIZE = 4
PAGES = 64


def drive(name: str, dtype: str, options: dict[str, str]) -> Driver:
    if options.get("attention") == "c" and not available():
        pytest.skip("the C kernels are not built")
    sizes: dict[str, Any] = {"page_size": SIZE, "num_pages": PAGES, "num_embeds": 96, "graphs": "off", **options}
    return Driver(load_engine(checkpoint(name), dtype=dtype, **sizes))


class Pair:
    """Two engines of one model: one computes over tables, the other over page lists with the same pages."""

    def __init__(self, name: str, dtype: str, options: dict[str, str], seed: int) -> None:
        self.rng = fresh(f"tables {name} {dtype} {seed}")
        self.exact = dtype == "bfloat16" and available()  # the C decoder gives equal columns equal bits
        # torch rounds to bfloat16 after each operation, and the two engines cut their batches differently
        self.rtol, self.atol = (0.03, 0.08) if dtype == "bfloat16" else (1e-3, 1e-4)
        self.tables, self.lists = drive(name, dtype, options), drive(name, dtype, options)
        self.rows: dict[int, list[int]] = {}
        self.filled: dict[int, int] = {}  # slots that may be read
        self.shared: dict[int, int] = {}  # rows that may not be written
        self.free = self.rng.permutation(PAGES).tolist()
        self.odd = 0.2 if seed else 0.0  # how often positions differ from slots
        self.unusual = 0  # commands whose tables weren't plain

    def change(self, table: int, source: int, keep: int, new: int) -> None:
        fresh_rows = [self.free.pop() for _ in range(new)]
        for driver in (self.tables, self.lists):
            fields = {"tables": changes((table, source, keep, fresh_rows))} if driver is self.tables else {}
            driver.ok_step(clear_pages=i32(fresh_rows), **fields)
        old, kept = self.rows.get(table, []), self.rows.get(source, [])[:keep]
        if source != table:
            self.shared[source] = max(self.shared.get(source, 0), keep)
            self.shared[table] = keep
        else:
            self.shared[table] = min(self.shared.get(table, 0), keep)
        self.filled[table] = min(self.filled.get(source, 0), keep * SIZE)
        self.rows[table] = kept + fresh_rows
        used = {row for rows in self.rows.values() for row in rows}
        self.free = [*(row for row in set(old) - used), *self.free]

    def command(self, table: int, embed0: int, masked: bool) -> tuple[dict[str, Any], dict[str, Any], int] | None:
        """One forward, over the table and over the list of its pages."""
        rng, rows = self.rng, self.rows[table]
        low = self.shared.get(table, 0) * SIZE
        if low >= len(rows) * SIZE:
            return None
        first = int(rng.integers(low, max(low, self.filled[table]) + 1))
        if rng.random() < 0.1:
            first = int(rng.integers(low, len(rows) * SIZE))  # perhaps behind a gap
        n = int(rng.integers(1, min(6, len(rows) * SIZE - first) + 1)) if first < len(rows) * SIZE else 0
        if not n:
            return None
        embeds = list(range(embed0, embed0 + n))
        over = {"iemb": embeds, "oemb": embeds, "okv_offset": first}
        ikv = rows[: -(-first // SIZE)]
        listed = {**over, "ikv": ikv, "okv": rows}
        tabled = {**over, "table": table}
        # Slots from `first` on are no columns of a table, but a list has whole pages. Once positions differ from slots,
        # a query could see what is left there, and only a mask hides it.
        mask = rng.random((n, first + n)) < 0.7 if masked else np.tri(n, first + n, first, dtype=bool)
        mask[:, first:] |= np.eye(n, dtype=bool)
        if masked:
            tabled["mask"] = mask
        if masked or self.unusual:
            listed["mask"] = np.concatenate(
                [mask[:, :first], np.zeros((n, len(ikv) * SIZE - first), bool), mask[:, first:]], axis=1
            )
        self.filled[table] = max(self.filled[table], first + n)
        return tabled, listed, first

    def forward(self) -> None:
        """One batch of several commands: over tables, over page lists, one table more than once."""
        rng = self.rng
        known = [table for table, rows in self.rows.items() if rows]
        commands: list[tuple[dict[str, Any], dict[str, Any], list[int]]] = []
        at = 0
        for table in rng.choice(known, int(rng.integers(1, 4))).tolist():
            shift = int(rng.random() < self.odd)  # positions that aren't the slots
            self.unusual += shift
            made = self.command(int(table), at, masked=bool(rng.random() < 0.1))
            if made is not None:
                tabled, listed, first = made
                n = len(tabled["iemb"])
                commands.append((tabled, listed, list(range(first + shift, first + shift + n))))
                at += n
        if rng.random() < 0.3:  # a command that stores nothing
            loose: dict[str, Any] = {"iemb": [at], "oemb": [at], "lane": 9}
            commands.append((loose, loose, [3]))
            at += 1
        if not commands:
            return
        tokens = rng.integers(0, 300, at).tolist()
        places = [position for *_, positions in commands for position in positions]
        outputs = []
        tabled_all, listed_all = [c[0] for c in commands], [c[1] for c in commands]
        for driver, mine in ((self.tables, tabled_all), (self.lists, listed_all)):
            driver.embed(tokens, list(range(at)), places)
            driver.ok(forward_batch([{"lane": 1, **command} for command in mine]))
            outputs.append(driver.logits(range(at)))
        if self.exact:
            assert np.array_equal(outputs[0], outputs[1])
        else:
            np.testing.assert_allclose(outputs[0], outputs[1], rtol=self.rtol, atol=self.atol)

    def step(self) -> None:
        rng = self.rng
        known = [table for table, rows in self.rows.items() if rows]
        choice = rng.random()
        if not known or (choice < 0.1 and len(self.free) > 40):
            table = int(rng.choice([0, 1, 2, 70]))
            if not self.rows.get(table):
                self.change(table, table, 0, int(rng.integers(1, 4)))
            return
        table = int(rng.choice(known))
        have, room = len(self.rows[table]), len(self.free) > 40
        if choice < 0.25 and room:
            self.change(table, table, have, int(rng.integers(1, 3)))
        elif choice < 0.35 and room:
            child = int(rng.choice([t for t in (3, 4, 5, 71) if t != table]))
            self.change(child, table, int(rng.integers(0, have + 1)), int(rng.integers(0, 3)))
        elif choice < 0.4:
            self.change(table, table, int(rng.integers(0, have + 1)), 0)
        else:
            self.forward()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("name", "dtype", "options"), ENGINES, ids=lambda v: "-".join(v.values()) if isinstance(v, dict) else v
)
def test_tables_give_what_page_lists_give(name: str, dtype: str, options: dict[str, str], seed: int) -> None:
    pair = Pair(name, dtype, options, seed)
    few = options.get("attention") == "triton"  # its interpreter is slow
    for _ in range(15 if few else 60):
        pair.step()
    assert bool(pair.unusual) == bool(seed) or (few and seed)


def test_a_command_outside_of_its_table_fails_alone() -> None:
    d = drive("llama3-grouped", "float32", {"attention": "torch-gather"})
    d.ok_step(tables=changes((2, 2, 0, [5, 6])), clear_pages=i32([5, 6]))
    d.embed([1, 2, 3, 4], [0, 1, 2, 3], [0, 1, 8, 0])
    batch = forward_batch(
        [
            {"iemb": [0, 1], "oemb": [1], "table": 2, "lane": 1},
            {"iemb": [2], "table": 2, "okv_offset": 8, "lane": 2},
            {"iemb": [3], "table": 1000, "lane": 3},
            {"iemb": [3], "table": 2, "okv_offset": -1, "lane": 4},
        ]
    )
    assert d.run(batch).status.tolist() == [Status.OK, Status.FAILED, Status.FAILED, Status.FAILED]


def test_a_skipped_command_changes_no_table() -> None:
    d = drive("llama3-grouped", "float32", {"attention": "torch-gather"})
    d.ok_step(tables=changes((0, 0, 0, [7])), clear_pages=i32([7]))
    d.embed([1], [0], [0])
    d.forward(iemb=[0], oemb=[1], table=0)
    d.ok(sample_batch([{"embed": 1, "slot": 0, "stop": list(range(320))}]))
    ended = embed_batch([{"embed": [0], "slot": [0], "position": [1]}])
    skipped = forward_batch([{"iemb": [0], "oemb": [1], "table": 0, "okv_offset": 1}])
    assert [r.status.tolist() for r in d.step(ended, skipped).results] == [[Status.SKIPPED]] * 2
    tables = d.engine.pools.tables
    assert (tables.count[0], tables.plain[0]) == (1, 1)
    assert d.engine.pools.position[7].tolist() == [0, -1, -1, -1]


def test_the_array_of_rows_grows_and_keeps_what_it_holds() -> None:
    tables = PageTables(page_size=4)
    for table in (0, 63, 64, 500):
        tables.change(changes((table, table, 0, range(table, table + 70))))
    tables.change(changes((7, 500, 30, [9]), (500, 500, 0, [])))
    assert tables.rows[7, :31].tolist() == [*range(500, 530), 9]
    assert tables.rows[64, :70].tolist() == list(range(64, 134))
    assert tables.count[[0, 7, 63, 64, 500]].tolist() == [70, 31, 70, 70, 0]


def test_rows_that_are_added_again_stay_plain_behind_another_table_s_plain_rows() -> None:
    tables = PageTables(page_size=4)
    tables.change(changes((0, 0, 0, range(3)), (1, 1, 0, range(10, 13))))
    tables.plain[:2] = 12
    tables.change(changes((2, 1, 3, []), (2, 0, 2, [12])))
    assert (tables.rows[2, :3].tolist(), tables.plain[2]) == ([0, 1, 12], 12)
    tables.change(changes((2, 1, 3, []), (2, 0, 1, [11, 20])))
    assert (tables.rows[2, :3].tolist(), tables.plain[2]) == ([0, 11, 20], 8)
    tables.plain[0] = 2
    tables.change(changes((2, 1, 3, []), (2, 0, 2, [12])))
    assert tables.plain[2] == 2


@pytest.mark.parametrize(("name", "dtype"), [("llama3-grouped", "float32"), ("llama3-grouped", "bfloat16")])
def test_pages_outlive_a_reset_that_keeps_them_and_are_plain_in_a_table_that_gets_them(name: str, dtype: str) -> None:
    tokens = [*range(40, 48)]

    def filled() -> Driver:
        d = drive(name, dtype, {})
        d.ok_step(tables=changes((0, 0, 0, [7, 9])), clear_pages=i32([7, 9]))
        d.embed(tokens, [*range(8)], [*range(8)])
        d.forward(iemb=[*range(8)], oemb=[20], table=0)
        return d

    def go_on(d: Driver, table: int) -> int:
        d.embed([50], [0], [8])
        d.forward(iemb=[0], oemb=[1], table=table, okv_offset=8)
        return int(d.run(sample_batch([{"embed": 1, "slot": 0}])).token[0])

    undisturbed, kept = filled(), filled()
    undisturbed.ok_step(tables=changes((0, 0, 2, [3])), clear_pages=i32([3]))
    expected = go_on(undisturbed, 0)
    kept.ok_step(tables=changes((1, 1, 0, [5])), clear_pages=i32([5]))
    kept.embed([60], [0], [0])
    kept.forward(iemb=[0], oemb=[1], table=1)
    kept.engine.reset([7, 9])
    pools = kept.engine.pools
    assert not pools.kv[:, :, 5].any()
    assert pools.tables.count.max() == 0
    kept.ok_step(tables=changes((4, 4, 0, [7, 9, 3])), clear_pages=i32([3]))
    assert pools.tables.plain[4] == 8, "a decode step need not list the columns"
    assert go_on(kept, 4) == expected


# ---- the work of a decode step --------------------------------------------------------------------------------------


def counted(engine: Any, step: Step) -> tuple[int, int]:
    """Return how many calls (Python's and C's) a step makes, and the most bytes that it allocates at a time."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    gc.disable()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    sys.setprofile(count)
    try:
        result: StepResult = engine.step(step)
    finally:
        sys.setprofile(None)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        gc.enable()
    assert not any(answer.status.any() for answer in result.results)
    return calls, peak - before


def test_the_host_s_work_for_a_decode_step_is_the_same_at_128_and_at_32768_tokens(tmp_path: Path) -> None:
    if not available():
        pytest.skip("the C kernels are not built")
    longest = 32_768
    path = random_checkpoint(tmp_path / "long", CONFIGS["llama3-grouped"] | {"max_position_embeddings": longest + 1})
    work = {}
    for length in (128, longest):
        sizes: dict[str, Any] = {"num_pages": longest // 16 + 1, "page_size": 16, "num_embeds": 4}
        d = Driver(load_engine(path, dtype="bfloat16", **sizes))
        tables = d.engine.pools.tables
        rows = i32(range(length // 16 + 1))
        d.ok_step(tables=changes((0, 0, 0, rows.tolist())), clear_pages=rows)
        d.embed([1], [0], [length])
        command = forward_batch([{"iemb": [0], "oemb": [1], "table": 0, "okv_offset": length}])
        for number in range(2):  # the first step makes what is made once
            tables.plain[0] = length  # as if the context had been computed
            work[length] = counted(d.engine, Step(number, (command,)))
    (calls, size), (more_calls, more_size) = work[128], work[longest]
    assert calls == more_calls
    assert abs(more_size - size) <= 256, "integers above 256 take memory, and nothing else may differ"
