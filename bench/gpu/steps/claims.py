"""Claims that only a card can prove: memory that no estimate leaves out, and bits that don't depend on the batch."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
import torch

from bench.gpu.loops import DecodeLoop
from bench.gpu.record import Record
from bench.gpu.shapes import FLAT
from bench.product.common import Step
from bench.product.gpu import EMPTY_I32, AttentionBatch, Swaps, TableColumns, torch_decoder
from bench.product.worker import load_engine, random_checkpoint

MIB = 1 << 20
STATES_MIB = 160
"""What an engine keeps for the states of runs side by side (`kv_budget`)."""
CLOSE, ALIKE = 0.15, 0.8
"""Difference of log-probabilities, and share of equal tokens, where experts are multiplied one by one or together."""


class Found(NamedTuple):
    """Whether a claim holds, and what was seen."""

    holds: bool
    seen: dict[str, Any]


def run(record: Record) -> None:
    """Try each claim. One that doesn't hold, or that raises, fails the step, and the others are tried."""
    claims: dict[str, Callable[[Record, Path], Found]] = {
        "pages leave a full card": pages_leave_a_full_card,
        "log-probabilities don't depend on the batch": log_probabilities_of_any_batch,
        "states of runs stay within what is kept": states_of_runs,
        "experts in graphs tell what experts one by one tell": experts_in_graphs,
    }
    with tempfile.TemporaryDirectory() as directory:
        vocab = 512 if record.rehearse else FLAT["vocab_size"]
        model = random_checkpoint(Path(directory), FLAT | {"vocab_size": vocab}, seed=1, std=0.05)
        for name, claim in claims.items():
            begun = time.perf_counter()
            try:
                with torch.inference_mode():
                    found = claim(record, model)
            except Exception as error:  # noqa: BLE001 - the other claims are tried all the same
                found = Found(False, {"error": repr(error)[:400]})
            record.note(**{name: {"holds": found.holds, "s": round(time.perf_counter() - begun, 1), **found.seen}})
            record.expect(found.holds, f"{name}: {found.seen}")
            gc.collect()
            if not record.rehearse:
                torch.cuda.empty_cache()


def _options(record: Record) -> dict[str, Any]:
    return {"dtype": "bfloat16", "device": record.device, "kernels": "torch"}


def pages_leave_a_full_card(record: Record, model: Path) -> Found:
    """Send pages to the host at once where `kv_memory_bytes=auto` has taken the card."""
    card = not record.rehearse
    host = int(0.07 * torch.cuda.mem_get_info()[0]) if card else MIB  # 70% of the tenth that auto leaves
    sizes: dict[str, Any] = {"kv_memory_bytes": "auto"} if card else {"num_pages": 64}
    engine = load_engine(model, attention="torch-gather", graphs="off", host_kv_bytes=host, **_options(record), **sizes)
    pinned = torch.cuda.host_memory_stats().get("allocated_bytes.current", 0) if card else 0
    ids = np.arange(min(engine.spec.host_pages, engine.spec.num_pages), dtype=np.int32)
    engine.step(Step(1, (), swaps=Swaps(ids, ids, EMPTY_I32, EMPTY_I32)))
    seen = {"asked_mib": host // MIB, "pinned_mib": pinned // MIB, "pages": len(ids)}
    return Found(pinned <= 1.2 * host + 64 * MIB, seen)


def log_probabilities_of_any_batch(record: Record, model: Path) -> Found:
    """Decode a row alone and among 64 with `batch_invariant`, with graphs and without; sum rows alone and together."""
    card = not record.rehearse
    many, attention = (64, "triton") if card else (3, "torch-chunked")
    said: dict[str, list[tuple[int, int]]] = {}
    for graphs in ("on", "off") if card else ("off",):
        engine = load_engine(
            model, attention=attention, batch_invariant=True, graphs=graphs, num_pages=256, graph_buckets="1,64",
            **_options(record),
        )  # fmt: skip
        kv = engine.pools.kv
        page = torch.randn_like(kv[:, :, :1])
        for rows in (1, many):
            kv.copy_(page.expand_as(kv))  # all pages alike, because a loop takes pages in any order
            token, logprob = DecodeLoop(engine, [40] * rows, 1).step()
            said.setdefault(graphs, []).append((int(token[0]), int(logprob[0].view(np.int32))))
    logits = 4 * torch.randn(many, 128256 if card else 512, device=record.device)
    found: dict[str, Any] = {
        "token_and_bits": said,
        "torch_s_sums_that_differ": _alone(logits, lambda x: x.logsumexp(-1)),
    }
    from bench.product.triton import triton_log_sums

    found["our_sums_that_differ"] = _alone(logits, triton_log_sums.log_sums)
    alike = all(len(set(pairs)) == 1 for pairs in said.values())
    return Found(alike and found["our_sums_that_differ"] == 0, found)


def _alone(logits: torch.Tensor, sums: Callable[[torch.Tensor], torch.Tensor]) -> int:
    """Return how many rows have another sum alone than together."""
    return int((sums(logits) != torch.cat([sums(row) for row in logits.split(1)])).sum())


def states_of_runs(record: Record, _: Path) -> Found:
    """Attend with 480 tokens to 131,072 columns, runs in turn and as the engine does: equal bits, within its memory."""
    from bench.product.triton import triton_paged

    tokens, length, heads, dim = (20, 1100, 2, 16) if record.rehearse else (480, 131072, 8, 128)
    pages = -(-length // 16)
    rows = torch.randperm(pages, device=record.device).int()[None]
    over = TableColumns(np.zeros(1, np.int32), np.full(1, -1), cast("Any", SimpleNamespace(table_rows=lambda: rows)))
    at, none = np.arange(length - tokens, length, dtype=np.int32), np.zeros((0, 16), np.int32)
    batch = AttentionBatch(np.array([0, tokens]), at, none[:, :1], np.array([pages], np.int32), none, tables=over)
    how: dict[str, Any] = {"device": record.device, "dtype": torch.bfloat16}
    q, kv = torch.randn(tokens, 4 * heads, dim, **how), torch.randn(2, pages, heads, 16, dim, **how)
    attention = triton_paged.TritonPaged(heads, record.device, group=4)
    said, peaks = [], []
    for tiles in (0, triton_paged.SPLIT_TILES):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(triton_paged, "SPLIT_TILES", tiles)
            before = _most_bytes(record)
            said.append(attention.run(attention.prepare(batch), q, kv, None))
            peaks.append((_most_bytes(record, again=False) - before) // MIB)
    same = torch.equal(*said)
    return Found(same and peaks[1] <= STATES_MIB, {"in_turn_mib": peaks[0], "mib": peaks[1], "equal_bits": same})


def _most_bytes(record: Record, *, again: bool = True) -> int:
    """Return the most bytes of a card since the last call; with `again` those of now, from which counting begins."""
    if record.rehearse:
        return 0
    if again:
        torch.cuda.reset_peak_memory_stats()
    return int(torch.cuda.memory_allocated() if again else torch.cuda.max_memory_allocated())


def experts_in_graphs(record: Record, _: Path) -> Found:
    """Decode Qwen3-MoE in bf16 by one multiplication for all experts, in graphs, against expert by expert without."""
    from tests.worker.graphs.test_graph_decoder import Programs, plain_driver

    card = not record.rehearse
    how = _options(record) | {"attention": "triton" if card else "torch-gather", "graph_buckets": "1,2,4,8"}
    drivers = [plain_driver("qwen3-moe", graphs="on" if card else "off", **how)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_decoder, "groups", lambda *_: False)
        drivers.append(plain_driver("qwen3-moe", graphs="off", **how))
    worst, same = [0.0], []

    class Loose(Programs):
        """Programs on two engines that may differ in roundings."""

        def _same(self, batches: Any, **fields: Any) -> None:
            one, two = (self._step(d, batches, fields).results[2] for d in self.drivers)
            alike = one.token == two.token
            same.extend(alike.tolist())
            worst.append(float(np.abs(one.logprob - two.logprob)[alike].max(initial=0)))
            drivers[0].engine.pools.slot_token[:] = drivers[1].engine.pools.slot_token  # both go on alike

    programs = Loose(drivers, 7, "experts", lists=False)
    for t in range(7):
        programs.prefill(t, 3 + t)
    turns = 2 if record.rehearse else 12
    before = getattr(drivers[0].engine.decoder, "replays", 0)
    for turn in range(turns):
        programs.decode(programs.rng.permutation(7)[: 1 + turn % 7].tolist(), hot=turn % 3 == 1)
    replays = getattr(drivers[0].engine.decoder, "replays", turns) - before
    seen = {"difference": max(worst), "same": float(np.mean(same)), "replays": replays}
    return Found(max(worst) < CLOSE and seen["same"] > ALIKE and replays == turns, seen)
