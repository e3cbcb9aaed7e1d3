"""Where a Forward batch is cut into passes: as a plain walk over its commands says, at a cost that the cuts decide."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tartlet_worker.handlers import conflicts
from tartlet_worker.handlers.conflicts import cut_at_conflicts
from tartlet_worker.page_tables import PageTables
from tartlet_worker.pools import Pools
from tests.worker.driver import forward_batch
from tests.worker.seeds import rng as fresh

SIZE, PAGES, EMBEDS, TABLES = 4, 12, 40, 4


def pools(filled: np.ndarray) -> Pools:
    """What the cuts look at of an engine's pools; `filled` [PAGES, SIZE] says which slots hold a token."""
    made = SimpleNamespace(
        page_size=SIZE,
        total_pages=PAGES,
        position=np.where(filled, 1, -1).astype(np.int32),
        embed_mark=np.zeros(EMBEDS, np.int64),
        slot_mark=np.zeros(PAGES * SIZE, np.int64),
        tables=PageTables(SIZE),
    )
    return cast("Pools", made)


def walked(commands: list[dict[str, Any]], filled: np.ndarray) -> list[tuple[int, int]]:
    """The cuts of a walk that keeps in sets what the range so far reads and writes."""
    ranges, first = [], 0
    embeds: set[int] = set()
    stored: set[int] = set()
    read: set[int] = set()
    ever: set[int] = set()
    ends: dict[int, int] = {}
    for b, c in enumerate(commands):
        slots = {c["okv"][at // SIZE] * SIZE + at % SIZE for at in places(c)}
        replaced = {slot // SIZE for slot in slots if filled[slot // SIZE, slot % SIZE] or slot in ever}
        table = c["table"]
        if (
            embeds & {*c["iemb"], *c["oemb"]}
            or stored & slots
            or read & replaced
            or (table >= 0 and c["okv_offset"] < ends.get(table, 0))
        ):
            ranges.append((first, b))
            first, embeds, stored, read, ends = b, set(), set(), set(), {}
        embeds |= {*c["oemb"]}
        stored |= slots
        ever |= slots
        read |= {*c["ikv"]}
        if table >= 0:
            ends[table] = c["okv_offset"] + len(c["iemb"])
    return [*ranges, (first, len(commands))]


def places(c: dict[str, Any]) -> range:
    return range(c["okv_offset"], c["okv_offset"] + len(c["iemb"])) if c["okv"] else range(0)


def drawn(rng: np.random.Generator, tight: bool) -> dict[str, Any]:
    """One command. A tight one draws its ids from so few that most batches conflict."""
    embeds, pages = (8, 4) if tight else (EMBEDS, PAGES)
    n = int(rng.integers(1, 4))
    c: dict[str, Any] = {
        "iemb": rng.choice(embeds, n, replace=False).tolist(),
        "oemb": rng.choice(embeds, int(rng.integers(0, n + 1)), replace=False).tolist(),
        "ikv": [],
        "okv": [],
        "okv_offset": 0,
        "table": -1,
    }
    kind = rng.random()
    if kind < 0.4:
        c["table"], c["okv_offset"] = int(rng.integers(TABLES)), int(rng.integers(0, 9))
    elif kind < 0.9:
        c["ikv"] = rng.choice(pages, int(rng.integers(0, 3)), replace=False).tolist()
        c["okv"] = rng.choice(pages, 2, replace=False).tolist()
        c["okv_offset"] = int(rng.integers(0, 2 * SIZE - n + 1))
    return c


@pytest.mark.parametrize("tight", [True, False])
def test_the_cuts_are_those_of_a_walk_over_the_commands(tight: bool) -> None:
    rng, cuts = fresh(f"cuts {tight}"), 0
    for _ in range(300):
        commands = [drawn(rng, tight) for _ in range(int(rng.integers(1, 12)))]
        filled = rng.random((PAGES, SIZE)) < 0.3
        found = cut_at_conflicts(forward_batch(commands), pools(filled))
        assert found == walked(commands, filled), commands
        cuts += len(found) - 1
    assert cuts > 20


def calls(count: int, rounds: int) -> int:
    """How many functions a cut of `count` commands calls whose tables are each written `rounds` times over."""
    each = count // rounds
    commands = [{"iemb": [b % EMBEDS], "table": b % each, "okv_offset": 3} for b in range(count)]
    seen, made = forward_batch(commands), pools(np.zeros((PAGES, SIZE), bool))
    made.tables._reserve(each, 1)
    total = 0

    def note(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal total
        total += event in {"call", "c_call"}

    sys.setprofile(note)
    try:
        ranges = cut_at_conflicts(seen, made)
    finally:
        sys.setprofile(None)
    assert ranges == [(at, at + each) for at in range(0, count, each)]
    return total


def test_a_batch_of_overwriting_commands_costs_by_its_passes_and_not_by_its_commands() -> None:
    """Speculation writes the slots of drafts that failed again, in a batch with many other programs."""
    assert calls(512, 2) == calls(32, 2)
    assert calls(512, 8) < calls(512, 2) + 6 * 20


def test_a_mask_is_not_padded_to_a_long_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conflicts, "MAX_COLUMNS", 100)
    long = {"iemb": [20], "ikv": [*range(1, 9)], "oemb": [21]}
    short = {"iemb": [*range(6)], "ikv": [0], "okv": [9, 10], "oemb": [6]}
    empty = pools(np.zeros((PAGES, SIZE), bool))
    assert cut_at_conflicts(forward_batch([short, long]), empty) == [(0, 2)]
    masked = short | {"mask": np.ones((6, 3 * SIZE), bool)}
    assert cut_at_conflicts(forward_batch([masked, long]), empty) == [(0, 1), (1, 2)]
