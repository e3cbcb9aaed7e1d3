"""Engines that have said Hello: their pools, and the steps that wait to be written to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from tartlet_common.engine.pools import EVERYONES_HOME, Home
from tartlet_common.engine.spec import EngineSpec
from tartlet_common.engine.step import NO_CHANGES, NO_SWAPS, TABLES_SINCE, Batch, Step, Swaps, TableChanges
from tartlet_common.errors.base import TartletError
from tartlet_common.rpc.resume import ResumableLink
from tartlet_control.tables.grammars import EngineGrammars
from tartlet_control.tables.host_memory import HostMemory, both
from tartlet_control.tables.ledger import PAGES, TABLES, pools_of
from tartlet_control.tables.page_tables import EngineTables
from tartlet_control.tables.prefixes import Prefixes
from tartlet_control.tables.rows.labels import Labels
from tartlet_control.tables.rows.left import LeftRows

EngineStatus = Literal["ready", "cordoned", "draining"]
MAX_CLEAR: Final = 1 << 17
"""Most numbers (4 bytes each) with which a step with batches clears, resets and changes tables.

The step's message must hold the batches too.
"""
_RATE_WINDOW_S: Final = 1.0


class RowCopy(NamedTuple):
    """A copy of the first tokens of a page, for a program that writes the rest."""

    program_id: str
    source: int
    target: int
    tokens: int


class EngineState:
    """One engine: its pools, the programs placed on it, what its next step must clear, and its counters."""

    __slots__ = (
        "adopted_tokens", "cached_tokens", "clear", "computed_tokens", "copies", "device_s", "gone_since", "grammars",
        "home", "host", "id", "incarnation", "joined_s", "labels", "left", "let_go", "link", "model_index",
        "next_lane", "on_seat", "outgoing", "pools", "prefixes", "program_ids", "protocol", "refused", "remade_tokens",
        "reset_lanes", "sampled_tokens", "spec", "status", "step_number", "step_spans", "steps", "tables",
        "tokens_per_s", "unload", "window_s", "window_tokens",
    )  # fmt: skip

    def __init__(
        self,
        engine_id: str,
        incarnation: str,
        spec: EngineSpec,
        model_index: int,
        first_step: int,
        *,
        home: Home = EVERYONES_HOME,
        protocol: int = TABLES_SINCE,
    ) -> None:
        """`protocol` is the version that its worker and control speak."""
        self.id = engine_id
        self.home = home
        self.incarnation = incarnation
        self.spec = spec
        self.model_index = model_index
        self.pools = pools_of(spec)
        self.host = HostMemory(spec.host_pages, spec.host_page_ns)
        self.protocol = protocol
        self.tables = EngineTables(kept=protocol >= TABLES_SINCE)
        self.prefixes = Prefixes(self.pools[PAGES], self.tables)
        """Rows that programs may take over instead of computing them."""
        self.labels = Labels()
        """The digests of rows that the worker knows."""
        self.left = LeftRows(self.pools[PAGES], {})
        """Rows that an earlier control had computed."""
        self.copies: list[RowCopy] = []
        """Copies of rows that come first in the step that is being made."""
        self.grammars = EngineGrammars()
        self.refused: dict[str, TartletError] = {}
        """The adapters that the engine can't have, by name."""
        self.unload: list[int] = []
        """Numbers of adapters that the worker is to be told to forget."""
        self.status: EngineStatus = "ready"
        self.link: ResumableLink[Any] | None = None
        """The numbered frames of both directions."""
        self.gone_since: float | None = None
        """When its connection broke; None while it is connected."""
        self.joined_s = 0.0
        self.let_go = False
        """Whether the worker was told to go, because the engine is drained."""
        self.program_ids: dict[str, None] = {}  # programs placed here, in order of placement
        self.on_seat: Callable[[str], object] = _nothing
        """Called with a program that was placed here or has left."""
        self.outgoing: list[Step] = []
        self.step_number = first_step
        self.next_lane = 1
        self.clear: tuple[set[int], set[int], set[int]] = (set(), set(), set())  # newly allocated ids, by pool
        self.reset_lanes: set[int] = set()
        self.steps = 0
        self.computed_tokens = 0
        self.sampled_tokens = 0
        self.cached_tokens = 0
        self.remade_tokens = 0  # to make lost state again, computed or about to be
        self.adopted_tokens = 0  # in rows that an earlier control had computed and programs have got back
        self.device_s = 0.0
        self.tokens_per_s = 0.0
        self.window_s = 0.0
        self.window_tokens = 0
        self.step_spans: Any = None  # rate limits of the spans of its steps (`step_spans`)

    def seat(self, program_id: str) -> None:
        """Note that a program is placed here."""
        self.program_ids[program_id] = None
        self.on_seat(program_id)

    def unseat(self, program_id: str) -> None:
        """Note that a program isn't placed here any more."""
        if program_id in self.program_ids:
            del self.program_ids[program_id]
            self.on_seat(program_id)

    def new_lane(self) -> int:
        """Return a number for a queue on this engine. The queue starts unpoisoned, whoever had the number before."""
        lane = self.next_lane
        self.next_lane = lane % 0xFFFF_FFFF + 1
        self.reset_lanes.add(lane)
        return lane

    def takeable(self, pool: int, asked: int) -> int:
        """Return how many things of a pool can be taken; if fewer than `asked` are free, free what is only cached."""
        if pool == TABLES:
            while self.tables.num_free < asked and self.prefixes.evict_branch():
                pass
            return self.tables.num_free
        free = self.pools[pool].num_free
        if pool == PAGES and free < asked:
            free += self.left.evict(asked - free)
        if pool == PAGES and free < asked:
            free += self.prefixes.evict(asked - free)
        return free

    def bring_rows(self, rows: Mapping[int, bytes]) -> None:
        """Take the rows that the worker still has, by page, before anything of the engine is taken."""
        self.labels = Labels(rows)
        self.left = LeftRows(self.pools[PAGES], rows)

    def send_step(self, batches: list[Batch], traceparent: str) -> int:
        """Queue a step for sending, with the clearing, changing of tables and resetting that must come before it.

        Returns the number of the step, and queues steps of their own for what doesn't fit beside the batches: a whole
        pool may change hands at once. Those steps are the numbers since the last one.
        """
        self.labels.forget(self.clear[PAGES])
        columns = [np.fromiter(ids, np.int32, len(ids)) for ids in self.clear]
        columns.append(np.fromiter(self.reset_lanes, np.uint32, len(self.reset_lanes)))
        self.clear = (set(), set(), set())
        self.reset_lanes = set()
        leave, come = self.host.take_out(), self.host.take_in()
        while sum(map(len, columns)) > MAX_CLEAR:
            part, columns = _cut(columns, MAX_CLEAR)
            self._queue_step([], part, "", swaps=leave)
            leave = NO_SWAPS
        room = MAX_CLEAR - sum(map(len, columns))
        while self.tables.size > room:
            self._queue_step([], _no_columns(), "", self.tables.drain(MAX_CLEAR), swaps=leave)
            leave = NO_SWAPS
        self._queue_step(batches, columns, traceparent, self.tables.drain(room), swaps=both(leave, come))
        return self.step_number

    def _queue_step(
        self,
        batches: list[Batch],
        columns: list[Any],
        traceparent: str,
        tables: TableChanges = NO_CHANGES,
        swaps: Swaps = NO_SWAPS,
    ) -> None:
        self.step_number += 1
        pages, embeds, slots, lanes = columns
        step = Step(self.step_number, tuple(batches), pages, embeds, slots, lanes, traceparent, tables, swaps)
        self.outgoing.append(step)

    def count_step(self, computed_tokens: int, sampled_tokens: int, device_s: float, now: float) -> None:
        """Add an answered step to the counters and to the rate of tokens."""
        self.steps += 1
        self.computed_tokens += computed_tokens
        self.sampled_tokens += sampled_tokens
        self.device_s += device_s
        self.window_tokens += sampled_tokens
        passed = now - self.window_s
        if passed >= _RATE_WINDOW_S:
            self.tokens_per_s = self.window_tokens / passed if passed < 2 * _RATE_WINDOW_S else 0.0
            self.window_s, self.window_tokens = now, 0


def engine_id_of(home: Home, name: str) -> str:
    """Return control's id of an engine: the name that its worker gives, behind the owner if there is one."""
    return f"{home.owner}/{name}" if home.owner else name


def _nothing(_: str) -> None:
    return


def _no_columns() -> list[Any]:
    """Return the columns of a step that clears and resets nothing."""
    return [np.zeros(0, np.int32)] * 3 + [np.zeros(0, np.uint32)]


def _cut(columns: list[Any], most: int) -> tuple[list[Any], list[Any]]:
    """Split off the first `most` values over all columns; returns them and the rest."""
    part, rest = [], []
    for column in columns:
        part.append(column[:most])
        rest.append(column[most:])
        most -= len(part[-1])
    return part, rest
