"""Steps as control sends them when programs run ahead, without a look at any token: for engines side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tartlet_common.engine.step import Batch, Sample, Step, StepResult
from tartlet_worker.pools import Pools
from tartlet_worker.torch_engine.engine import TorchEngine
from tests.worker.driver import changes, dist_batch, embed_batch, forward_batch, i32, sample_batch, u32

SIZE = 4
ROWS = 8  # of a table, at most
PAGES = 120


@dataclasses.dataclass
class Lane:
    """One program: its table, and how far its commands have come."""

    number: int
    rows: list[int] = dataclasses.field(default_factory=list)
    length: int = 0  # tokens whose forward was sent
    embedded: bool = False  # the next token's embed_txt was sent

    @property
    def embed(self) -> int:
        return self.number

    @property
    def out(self) -> int:
        return 20 + self.number


class Stream:
    """Draws steps: mostly decode steps of several lanes, and everything else that may come between."""

    def __init__(self, rng: np.random.Generator, lanes: int = 6, *, odd: float = 0.15) -> None:
        self.rng, self.odd = rng, odd
        self.lanes = [Lane(k) for k in range(lanes)]
        self.free = rng.permutation(PAGES).tolist()
        self.number = self.draw = 0
        self.made: list[tuple[int, int, int, list[int]]] = []
        self.cleared: list[int] = []
        self.reset: list[int] = []
        self.forgotten: list[int] = []  # slots that change hands

    def steps(self, count: int) -> list[Step]:
        return [self._any() if at % 12 else self._anew() for at in range(count)]

    def _anew(self) -> Step:
        self.reset += [lane.number for lane in self.lanes]
        return self._prompts(self.lanes)

    def _any(self) -> Step:
        rng = self.rng
        chosen = [lane for lane in self.lanes if rng.random() < 0.8] or [self.lanes[0]]
        if rng.random() > self.odd:
            return self._decode(chosen)
        odd = rng.choice(["prompt", "prompt", "again", "dist", "fail", "hot", "extra", "clear"])
        if odd == "prompt":
            return self._prompts(chosen if rng.random() < 0.5 else chosen[:1])
        if odd == "again":  # its last tokens are computed anew, over what was written
            chosen[0].length = max(1, chosen[0].length - int(rng.integers(0, 5)))
            chosen[0].embedded = False
            return self._decode(chosen)
        if odd == "dist":
            return self._step(dist_batch([{"embed": [chosen[0].out], "top_k": 3, "lane": chosen[0].number}]))
        if odd == "fail":
            return self._decode(chosen, fails=chosen[0])
        if odd == "hot":
            return self._decode(chosen, top_k=3)
        if odd == "clear":  # what the step in front may be writing
            self.forgotten += [chosen[-1].number]
            return self._decode(chosen)
        return self._decode(chosen, extra=True)

    def _grow(self, lane: Lane, tokens: int) -> None:
        need = -(-(lane.length + tokens) // SIZE)
        if need > ROWS:  # begin anew: its pages may become another lane's at once
            self.free += lane.rows
            lane.rows, lane.length, lane.embedded = [], 0, False
            need = -(-tokens // SIZE)
        new = [self.free.pop(0) for _ in range(need - len(lane.rows))]
        had, lane.rows = len(lane.rows), lane.rows + new
        if new or not had:
            self.made.append((lane.number, lane.number, had, new))
            self.cleared += new

    def _prompts(self, lanes: Sequence[Lane]) -> Step:
        rng, embeds, forwards, samples = self.rng, [], [], []
        for lane in lanes:
            self.free += lane.rows
            lane.rows, lane.length, lane.embedded = [], 0, False
        for lane in lanes:
            count = int(rng.integers(1, 7))
            self._grow(lane, count)
            at = list(range(50 + 8 * lane.number, 50 + 8 * lane.number + count))
            tokens = rng.integers(0, 300, count).tolist()
            embeds.append({"embed": at, "token": tokens, "position": range(count), "lane": lane.number})
            forwards.append({"iemb": at, "oemb": [lane.out], "table": lane.number, "lane": lane.number})
            samples.append({"embed": lane.out, "slot": lane.number, "lane": lane.number})
            lane.length = count
        return self._step(embed_batch(embeds), forward_batch(forwards), sample_batch(samples))

    def _embed(self, lane: Lane) -> dict[str, Any]:
        lane.embedded = True
        command = {"embed": [lane.embed], "position": [lane.length], "lane": lane.number}
        if self.rng.random() < 0.03:  # a token that the program chose itself
            return command | {"token": [int(self.rng.integers(0, 300))]}
        return command | {"slot": [lane.number]}

    def _decode(self, lanes: list[Lane], *, fails: Lane | None = None, top_k: int = 0, extra: bool = False) -> Step:
        """Make a decode step. Some lanes' next embed_txt stands in the same step, as behind each sample."""
        rng, forwards, samples = self.rng, [], []
        if rng.random() < 0.3:
            self.reset += [lane.number for lane in self.lanes]
        for lane in lanes:
            self._grow(lane, 1)
        head = [self._embed(lane) for lane in lanes if not lane.embedded]
        if fails is not None and head:
            head[0]["position"] = [10_000]
        if extra and head and "slot" in head[0]:
            head[0]["slot"] = [15]  # no sample has written it
        for lane in lanes:
            lane.embedded = False
            forwards.append({"iemb": [lane.embed], "oemb": [lane.out], "table": lane.number, "okv_offset": lane.length,
                             "lane": lane.number})  # fmt: skip
            lane.length += 1
            self.draw += 1
            hot = {"temperature": 0.9, "top_k": top_k, "min_p": 0.02, "seed": lane.number, "draw": self.draw}
            samples.append({"embed": lane.out, "slot": lane.number, "lane": lane.number}
                           | (hot if lane.number % 2 else {}))  # fmt: skip
        batches: list[Batch] = [embed_batch(head)] if head else []
        batches += [forward_batch(forwards), sample_batch(samples)]
        tail = [self._embed(lane) for lane in lanes if rng.random() < 0.7 and lane.length < ROWS * SIZE]
        if tail:
            batches.append(embed_batch(tail))
        if extra and rng.random() < 0.5:
            batches.append(dist_batch([{"embed": [lanes[0].out], "top_k": 2, "lane": lanes[0].number}]))
        return self._step(*batches)

    def _step(self, *batches: Batch) -> Step:
        self.number += 1
        made, cleared, reset, forgotten = self.made, self.cleared, self.reset, self.forgotten
        self.made, self.cleared, self.reset, self.forgotten = [], [], [], []
        return Step(
            self.number, batches, clear_pages=i32(cleared), clear_slots=i32(forgotten), clear_embeds=i32(forgotten),
            tables=changes(*made), reset_lanes=u32(reset),
        )  # fmt: skip


def with_stops(
    steps: list[Step], results: list[StepResult], rng: np.random.Generator, share: float = 0.04
) -> list[Step]:
    """Return the steps with stop tokens, some of which are the tokens that were sampled."""
    made = []
    for step, result in zip(steps, results, strict=True):
        batches: list[Batch] = []
        for batch, answer in zip(step.batches, result.results, strict=True):
            if isinstance(batch, Sample):
                more = 9 if rng.random() < 0.05 else int(rng.integers(0, 3))
                stops = [
                    [int(token) if rng.random() < share else 319, *rng.integers(300, 310, more)]
                    for token in answer.token
                ]
                indptr = i32([0, *np.cumsum([len(stop) for stop in stops])])
                listed = i32([t for stop in stops for t in stop])
                batches.append(dataclasses.replace(batch, stop=listed, stop_indptr=indptr))
            else:
                batches.append(batch)
        made.append(dataclasses.replace(step, batches=tuple(batches)))
    return made


def state(pools: Pools) -> dict[str, Any]:
    """Return all that a program could ever see of the pools on the host."""
    tables = pools.tables
    return {
        name: np.array(values)
        for name, values in {
            "embed_position": pools.embed_position, "embed_ended": pools.embed_ended, "slot_token": pools.slot_token,
            "slot_ended": pools.slot_ended, "position": pools.position, "seen": pools.seen_position,
            "plain": tables.plain, "count": tables.count,
        }.items()
    }  # fmt: skip


def compare(mine: Sequence[StepResult], theirs: Sequence[StepResult]) -> None:
    for a, b in zip(mine, theirs, strict=True):
        assert a.number == b.number
        assert a.computed_tokens == b.computed_tokens, a.number
        for x, y in zip(a.results, b.results, strict=True):
            for column in ("status", "error", "token", "ended", "dist_token", "detail"):
                assert np.array_equal(getattr(x, column), getattr(y, column)), (a.number, column)
            np.testing.assert_allclose(x.logprob, y.logprob, atol=1e-4)


def compare_pools(mine: TorchEngine, theirs: TorchEngine) -> None:
    """Compare all that a later command could see. Pages hold nothing that no command stored, in either engine."""
    for (name, a), (_, b) in zip(state(mine.pools).items(), state(theirs.pools).items(), strict=True):
        assert np.array_equal(a, b), name
    ours = mine.pools.kv[:, :, :PAGES].cpu()
    torch.testing.assert_close(ours, theirs.pools.kv[:, :, :PAGES], atol=1e-4, rtol=1e-4)
    pools = mine.pools
    told = np.flatnonzero((pools.embed_position >= 0) & ~pools.embed_ended)
    torch.testing.assert_close(pools.embeds[told].cpu(), theirs.pools.embeds[told], atol=1e-4, rtol=1e-4)
    assert not mine.pools.kv[:, :, mine.pools.zero_page].any()
