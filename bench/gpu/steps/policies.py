"""Batching policies under load (Pie, Table 5), by `bench batching` on this card."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace

from bench.batching import POLICIES, measure
from bench.gpu.record import Record
from bench.gpu.shapes import checkpoint
from bench.gpu.steps.programs import guest, worker_flags

PROGRAMS, TOKENS = 128, 16
BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Rows of graphs: fewer than usual, because a worker starts for each policy."""
BOUNDS = {"adaptive over eager": 15.0}
"""Of goals that are higher on a card than on a CPU."""


def run(record: Record) -> None:
    """Note the table: tokens a second for each policy."""
    path = checkpoint("1b", record.scratch, rehearse=record.rehearse)
    programs, tokens = (4, 4) if record.rehearse else (PROGRAMS, TOKENS)
    policies = ("eager", "adaptive") if record.rehearse else tuple(POLICIES)
    module, flags = guest(record), worker_flags(record, BUCKETS)
    table = asyncio.run(measure(path, programs, tokens, 1, guest=module, worker=flags, loads=1, policies=policies))
    record.note(columns=list(table.columns), rows=[list(row) for row in table.rows])
    goals = [replace(goal, bound=BOUNDS.get(goal.name, goal.bound)) for goal in table.goals]
    record.note(goals=[asdict(goal) | {"met": goal.met} for goal in goals])
