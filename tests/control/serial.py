"""The plainest meaning of a queue's commands: one after the other, on an engine of its own, with the program's ids."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tartlet_common.engine import step as s
from tartlet_common.engine.step import Step
from tartlet_worker.fake import FakeEngine, FakeOptions

Command = tuple[str, dict[str, Any]]
OK, FAILED, SKIPPED = "ok", "failed", "skipped"


@dataclass
class Serial:
    """Executes commands of one queue; `outcomes` has (status, token) for each."""

    options: FakeOptions
    outcomes: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engine = FakeEngine(self.options)
        self.held: dict[str, set[int]] = {"page": set(), "embed": set(), "slot": set()}
        self.poisoned = False
        self._step = 0

    def run(self, commands: list[Command]) -> None:
        for name, args in commands:
            self.outcomes.append(getattr(self, "_" + name)(**args))

    def _reset(self) -> tuple[str, int]:
        self.poisoned = False
        return OK, 0

    def _alloc(self, kind: str, ids: list[int]) -> tuple[str, int]:
        if self.poisoned or self.held[kind] & set(ids):
            return self._fail()
        self.held[kind] |= set(ids)
        at = np.array(ids, np.int32)
        none = np.zeros(0, np.int32)
        pages, embeds, slots = (at if k == kind else none for k in ("page", "embed", "slot"))
        self.engine.step(Step(0, (), clear_pages=pages, clear_embeds=embeds, clear_slots=slots))
        return OK, 0

    def _dealloc(self, kind: str, ids: list[int]) -> tuple[str, int]:
        if self.poisoned:
            self.held[kind] -= set(ids)
            return OK, 0
        known = set(ids) <= self.held[kind]
        self.held[kind] -= set(ids)
        return (OK, 0) if known else self._fail()

    def _fail(self) -> tuple[str, int]:
        self.poisoned = True
        return FAILED, 0

    def _go(self, batch: Any, **named: list[int]) -> tuple[str, int]:
        if self.poisoned or any(not set(ids) <= self.held[kind] for kind, ids in named.items()):
            return self._fail()
        (result,) = self.engine.step(Step(1, (batch,))).results
        status = int(result.status[0])
        if status == s.Status.SKIPPED:
            return SKIPPED, 0
        assert status == s.Status.OK
        return OK, int(result.token[0]) if len(result.token) else 0

    def _embed(self, embeds: list[int], sources: list[int], positions: list[int], slots: bool) -> tuple[str, int]:
        if len(set(embeds)) != len(embeds):
            return self._fail()
        none = [-1] * len(embeds)
        batch = s.EmbedTxt(
            u32([1]), ptr(embeds), i32(embeds), i32(none if slots else sources), i32(sources if slots else none),
            i32(positions),
        )  # fmt: skip
        return self._go(batch, embed=embeds, slot=sources if slots else [])

    def _forward(
        self, ikv: list[int], iemb: list[int], okv: list[int], oemb: list[int], offset: int
    ) -> tuple[str, int]:
        if len(set(okv)) != len(okv) or len(set(oemb)) != len(oemb) or len(oemb) > len(iemb):
            return self._fail()
        if okv and offset + len(iemb) > len(okv) * self.options.page_size:
            return self._fail()
        batch = s.Forward(
            u32([1]), i32(ikv), ptr(ikv), i32(iemb), ptr(iemb), i32(okv), ptr(okv), i32([offset]), i32(oemb), ptr(oemb),
            np.zeros(0, np.uint8), i32([0, 0]),
        )  # fmt: skip
        return self._go(batch, page=ikv + okv, embed=iemb + oemb)

    def _copy(self, src: int, dst: int, span: tuple[int, int, int]) -> tuple[str, int]:
        batch = s.CopyKvPage(u32([1]), i32([src]), i32([dst]), i32([span[0]]), i32([span[1]]), i32([span[2]]))
        return self._go(batch, page=[src, dst])

    def _mask(self, page: int, bits: int) -> tuple[str, int]:
        return self._go(s.MaskKvPage(u32([1]), i32([page]), u32([bits])), page=[page])

    def _sample(self, embed: int, slot: int, stop: list[int], seed: int) -> tuple[str, int]:
        one = np.ones(1, np.float32)
        batch = s.Sample(
            u32([1]), i32([embed]), i32([slot]), one, i32([0]), one, np.zeros(1, np.float32),
            np.array([seed], np.uint64), u32([0]), i32(stop), ptr(stop),
        )  # fmt: skip
        return self._go(batch, embed=[embed], slot=[slot])


def i32(values: list[int]) -> Any:
    return np.array(values, np.int32)


def u32(values: list[int]) -> Any:
    return np.array(values, np.uint32)


def ptr(values: list[int]) -> Any:
    return np.array([0, len(values)], np.int32)
