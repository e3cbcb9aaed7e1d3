"""Drives an engine one call at a time, the way a program would: for tests that state facts about single commands."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tartlet_common.engine.step import (
    Batch,
    BatchResult,
    CopyKvPage,
    EmbedTxt,
    Forward,
    GetNextDist,
    MaskKvPage,
    Sample,
    Step,
    StepResult,
    TableChanges,
)
from tartlet_worker.torch_engine.engine import TorchEngine


def i32(values: Any) -> npt.NDArray[Any]:
    return np.asarray(values, np.int32).reshape(-1)


def u32(values: Any) -> npt.NDArray[Any]:
    return np.asarray(values, np.uint32).reshape(-1)


def indptr(lists: Any) -> npt.NDArray[Any]:
    return np.concatenate([[0], np.cumsum([len(x) for x in lists])]).astype(np.int32)


def flat(lists: Any) -> npt.NDArray[Any]:
    return i32(list(itertools.chain.from_iterable(lists)))


def embed_batch(commands: Sequence[dict[str, Any]]) -> EmbedTxt:
    """Commands: embed, position, and token or slot lists; lane."""
    return EmbedTxt(
        lane=u32([c.get("lane", 1) for c in commands]),
        indptr=indptr([c["embed"] for c in commands]),
        embed=flat(c["embed"] for c in commands),
        token=flat(c.get("token", [-1] * len(c["embed"])) for c in commands),
        slot=flat(c.get("slot", [-1] * len(c["embed"])) for c in commands),
        position=flat(c["position"] for c in commands),
    )


def forward_batch(commands: Sequence[dict[str, Any]]) -> Forward:
    """Commands: iemb, and optionally ikv, okv, okv_offset, oemb, mask (bool [n, columns]), table, adapter; lane."""
    packed = [
        np.packbits(np.asarray(c["mask"], bool).reshape(-1), bitorder="little")
        if c.get("mask") is not None
        else np.zeros(0, np.uint8)
        for c in commands
    ]
    lists = {name: [list(c.get(name, ())) for c in commands] for name in ("ikv", "iemb", "okv", "oemb")}
    return Forward(
        lane=u32([c.get("lane", 1) for c in commands]),
        okv_offset=i32([c.get("okv_offset", 0) for c in commands]),
        mask_bits=np.concatenate(packed),
        mask_indptr=indptr(packed),
        adapter=u32([c.get("adapter", 0) for c in commands] if any(c.get("adapter") for c in commands) else []),
        table=i32([c.get("table", -1) for c in commands]) if any("table" in c for c in commands) else i32([]),
        **{name: flat(values) for name, values in lists.items()},
        **{f"{name}_indptr": indptr(values) for name, values in lists.items()},
    )


def sample_batch(commands: Sequence[dict[str, Any]]) -> Sample:
    """Commands: embed, slot, and optionally temperature, top_k, top_p, min_p, seed, draw, stop; lane."""

    def column(name: str, default: float, dtype: type) -> npt.NDArray[Any]:
        return np.asarray([c.get(name, default) for c in commands], dtype)

    return Sample(
        lane=u32([c.get("lane", 1) for c in commands]),
        embed=column("embed", 0, np.int32),
        slot=column("slot", 0, np.int32),
        temperature=column("temperature", 0, np.float32),
        top_k=column("top_k", 0, np.int32),
        top_p=column("top_p", 1, np.float32),
        min_p=column("min_p", 0, np.float32),
        seed=column("seed", 0, np.uint64),
        draw=column("draw", 0, np.uint32),
        stop=flat(c.get("stop", ()) for c in commands),
        stop_indptr=indptr([c.get("stop", ()) for c in commands]),
    )


def dist_batch(commands: Sequence[dict[str, Any]]) -> GetNextDist:
    """Commands: embed list, top_k; lane."""
    return GetNextDist(
        lane=u32([c.get("lane", 1) for c in commands]),
        indptr=indptr([c["embed"] for c in commands]),
        embed=flat(c["embed"] for c in commands),
        top_k=i32([c.get("top_k", 5) for c in commands]),
    )


def copy_batch(src: int, dst: int, src_offset: int, dst_offset: int, size: int, lane: int = 1) -> CopyKvPage:
    return CopyKvPage(u32([lane]), i32([src]), i32([dst]), i32([src_offset]), i32([dst_offset]), i32([size]))


def mask_batch(page: int, bits: int, lane: int = 1) -> MaskKvPage:
    return MaskKvPage(u32([lane]), i32([page]), u32([bits]))


def changes(*made: tuple[int, int, int, Sequence[int]]) -> TableChanges:
    """Changes of tables: number, source, rows kept, new rows."""
    rows = [list(new) for *_, new in made]
    table, source, keep = (i32([change[k] for change in made]) for k in range(3))
    return TableChanges(table, source, keep, indptr(rows), flat(rows))


class Driver:
    """One engine, and numbers for its steps."""

    def __init__(self, engine: TorchEngine) -> None:
        self.engine = engine
        self._numbers = itertools.count()

    def step(self, *batches: Batch, **fields: Any) -> StepResult:
        return self.engine.step(Step(next(self._numbers), tuple(batches), **fields))

    def run(self, batch: Batch) -> BatchResult:
        return self.step(batch).results[0]

    def ok(self, *batches: Batch) -> StepResult:
        """As `step`, and every command must have run."""
        result = self.step(*batches)
        for answer in result.results:
            assert not answer.status.any(), (answer.status, answer.detail)
        return result

    def ok_step(self, **fields: Any) -> None:
        """Run a step without batches: it clears and changes tables."""
        self.step(**fields)

    def embed(self, tokens: Any, embeds: Any, positions: Any) -> None:
        self.ok(embed_batch([{"embed": embeds, "token": tokens, "position": positions}]))

    def forward(self, **command: Any) -> None:
        self.ok(forward_batch([command]))

    def logits(self, embeds: Any) -> npt.NDArray[Any]:
        """Logits [N, vocab] float32 of output embeds, through the engine's own head."""
        pools = self.engine.pools
        return self.engine.decoder.logits(pools, i32(embeds)).cpu().numpy()

    def prefill(
        self, tokens: Any, pages: Any, *, first: int = 0, embed0: int = 0, positions: Any = None
    ) -> npt.NDArray[Any]:
        """Embed tokens, run them over `pages` from slot `first` on, and return all their logits."""
        tokens = list(tokens)
        embeds = list(range(embed0, embed0 + len(tokens)))
        self.embed(tokens, embeds, positions if positions is not None else range(first, first + len(tokens)))
        self.forward(ikv=pages, iemb=embeds, okv=pages, okv_offset=first, oemb=embeds)
        return self.logits(embeds)
