"""Short ways to write steps, for tests of engines."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

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
)


def _i32(values: Any) -> Any:
    return np.asarray(values, np.int32).reshape(-1)


def _u32(values: Any) -> Any:
    return np.asarray(values, np.uint32).reshape(-1)


def _csr(lists: Sequence[Sequence[int]]) -> tuple[Any, Any]:
    values = [v for one in lists for v in one]
    return _i32(values), _i32(np.concatenate([[0], np.cumsum([len(one) for one in lists])]))


def embed(*commands: tuple[int, Sequence[int], Sequence[int], Sequence[int]], slots: bool = False) -> EmbedTxt:
    """Each command: lane, embeds, tokens (or slots), positions."""
    embeds, indptr = _csr([c[1] for c in commands])
    sources, positions = _csr([c[2] for c in commands])[0], _csr([c[3] for c in commands])[0]
    none = np.full(len(sources), -1, np.int32)
    token, slot = (none, sources) if slots else (sources, none)
    return EmbedTxt(_u32([c[0] for c in commands]), indptr, embeds, token, slot, positions)


def fwd(
    lane: int, ikv: Sequence[int], iemb: Sequence[int], okv: Sequence[int] = (), oemb: Sequence[int] = (), **more: Any
) -> dict[str, Any]:
    """One forward, for `forward`; `okv_offset` and `mask` (bool [n, C]) by keyword."""
    return {"lane": lane, "ikv": ikv, "iemb": iemb, "okv": okv, "oemb": oemb, **more}


def forward(*commands: dict[str, Any], adapter: int = 0) -> Forward:
    """A batch of forwards, all under one adapter or none."""
    masks = [
        np.packbits(np.asarray(c["mask"], np.uint8).ravel(), bitorder="little").tolist() if "mask" in c else []
        for c in commands
    ]
    bits, bits_indptr = _csr(masks)
    lists = {name: _csr([c[name] for c in commands]) for name in ("ikv", "iemb", "okv", "oemb")}
    return Forward(
        _u32([c["lane"] for c in commands]),
        *lists["ikv"],
        *lists["iemb"],
        *lists["okv"],
        _i32([c.get("okv_offset", 0) for c in commands]),
        *lists["oemb"],
        bits.astype(np.uint8),
        bits_indptr,
        adapter=_u32([adapter] * len(commands) if adapter else []),
    )


def sample(*commands: tuple[int, int, int], stop: Sequence[int] = (), **how: float) -> Sample:
    """Each command: lane, embed, slot. `temperature`, `top_k`, `top_p`, `min_p`, `seed`, `draw` go to all."""
    n = len(commands)
    values, indptr = _csr([list(stop)] * n)
    return Sample(
        _u32([c[0] for c in commands]),
        _i32([c[1] for c in commands]),
        _i32([c[2] for c in commands]),
        np.full(n, how.get("temperature", 0.0), np.float32),
        _i32([int(how.get("top_k", 0))] * n),
        np.full(n, how.get("top_p", 1.0), np.float32),
        np.full(n, how.get("min_p", 0.0), np.float32),
        np.full(n, int(how.get("seed", 0)), np.uint64),
        _u32([int(how.get("draw", 0))] * n),
        values,
        indptr,
    )


def with_options(batch: Sample, options: dict[int, bytes]) -> Sample:
    """The same batch, where some commands (by index) bring packed options."""
    data = [options[b] for b in sorted(options)]
    return dataclasses.replace(
        batch,
        with_options=_i32(sorted(options)),
        options=np.frombuffer(b"".join(data), np.uint8),
        options_indptr=_i32([0, *itertools.accumulate(map(len, data))]),
    )


def dist(lane: int, embeds: Sequence[int], top_k: int = 256) -> GetNextDist:
    """Distributions of some embeds."""
    return GetNextDist(_u32([lane]), _i32([0, len(embeds)]), _i32(list(embeds)), _i32([top_k]))


def copy(lane: int, src: int, dst: int, src_offset: int, dst_offset: int, size: int) -> CopyKvPage:
    """One copy."""
    return CopyKvPage(_u32(lane), _i32(src), _i32(dst), _i32(src_offset), _i32(dst_offset), _i32(size))


def hide(lane: int, page: int, bits: int) -> MaskKvPage:
    """One mask_kvpage."""
    return MaskKvPage(_u32(lane), _i32(page), _u32(bits))


def run(engine: Any, *batches: Batch, number: int = 1, **more: Any) -> tuple[BatchResult, ...]:
    """The results of one step."""
    fields = {k: (_u32(v) if k == "reset_lanes" else _i32(v)) for k, v in more.items()}
    result = engine.step(Step(number, tuple(batches), **fields))
    assert result.number == number
    return tuple(result.results)
