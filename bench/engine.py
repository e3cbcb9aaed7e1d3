"""The torch engine in a plain loop, beside transformers' `generate` on the same weights.

The rows: C kernels on one thread, which is the fast path and has the goals; the same with `batch_invariant`; torch's
kernels on one thread; and two threads, where the engine uses torch's kernels. transformers runs on as many threads as
the row. Pairs are interleaved in alternating order, and ratios are taken pair by pair, because other work on the
machine changes its speed. "same tokens" is how far both sides generate the same text, as a share of all tokens: with
random weights in bf16 the two part where two tokens are almost as probable.

"of GEMM" counts the multiplications that are computed: those of the layers for every prompt token, and those of the
output matrix for the last one; the embedding table is looked up, not multiplied.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from bench.engine_loop import BareLoop, Timing, TransformersLoop
from bench.harness import report
from bench.product.worker import LLAMA_88M, EngineOptions, load_engine, random_checkpoint

TARGETS = {1: 1.2, 8: 1.6, 32: 1.9}
"""Least speed over transformers by batch size, on the fast path."""


class Mode(NamedTuple):
    """How the engine is set up in a row."""

    label: str
    kernels: str = "auto"
    threads: int = 1
    batch_invariant: bool = False


MODES = (
    Mode("C"),
    Mode("C, invariant", batch_invariant=True),
    Mode("torch", kernels="torch"),
    Mode("torch, 2 threads", threads=2),
)


@dataclass(frozen=True, slots=True)
class Machine:
    """Limits of the machine on one thread, for what stands beside the results."""

    read_gb_s: float  # of a buffer larger than the last private cache
    bf16_gflop_s: float  # best of a few square multiplications
    threads: int


def measure_machine() -> Machine:
    """Read bandwidth and bf16 GEMM peak, best of several."""
    data = torch.ones(64 << 20, dtype=torch.float32)  # 256 MiB
    read = data.numel() * 4 / _best(data.sum, 5)
    n = 2048
    a, b = torch.randn(n, n).bfloat16(), torch.randn(n, n).bfloat16()
    gemm = 2 * n**3 / _best(lambda: a @ b, 5)
    return Machine(read / 1e9, gemm / 1e9, torch.get_num_threads())


def _best(call: Callable[[], Any], times: int) -> float:
    call()
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


@dataclass(frozen=True, slots=True)
class Work:
    """What a step has to read and to multiply, of a Llama checkpoint in bf16."""

    layer_weights: int  # numbers in all layers
    head_weights: int  # numbers in the output matrix
    kv_bytes_per_token: int

    @classmethod
    def of(cls, path: Path, kv_bytes_per_token: int) -> Work:
        """Read the sizes from `config.json`."""
        c = json.loads((path / "config.json").read_text())
        hidden, heads = c["hidden_size"], c["num_attention_heads"]
        head_dim = c.get("head_dim") or hidden // heads
        attention = hidden * head_dim * (2 * heads + 2 * c.get("num_key_value_heads", heads))
        layers = c["num_hidden_layers"] * (attention + 3 * hidden * c["intermediate_size"])
        return cls(layers, hidden * c["vocab_size"], kv_bytes_per_token)

    def prefill_flops(self, batch: int, prompt: int) -> int:
        """Count the operations of a prompt's matrix multiplications; attention, a few per cent, is left out."""
        return 2 * batch * (prompt * self.layer_weights + self.head_weights)

    def step_bytes(self, batch: int, context: float) -> float:
        """Count the bytes that a decode step reads: weights once, keys and values of every sequence."""
        return 2 * (self.layer_weights + self.head_weights) + self.kv_bytes_per_token * batch * context


def same_tokens(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> float:
    """Share of the tokens that stand before the first difference of their sequence.

    Example:
        >>> same_tokens([[1, 2, 3, 4], [5, 6, 7, 8]], [[1, 2, 9, 4], [5, 6, 7, 8]])
        0.75
    """
    same = 0
    for mine, other in zip(ours, theirs, strict=True):
        for a, b in zip(mine, other, strict=True):
            if a != b:
                break
            same += 1
    return same / sum(map(len, ours))


@dataclass(frozen=True, slots=True)
class Row:
    """One batch size in one mode: medians over the pairs."""

    batch: int
    mode: Mode
    tokens_per_s: float
    transformers_tokens_per_s: float
    ratio: float  # median of the pairs' ratios
    worst_ratio: float
    same_tokens: float
    target: float | None  # of the ratio; on the fast path only
    prefill_ms: float
    step_ms: float  # per decode step
    read_fraction: float  # weights and KV read a step, over the measured bandwidth of one thread
    gemm_fraction: float  # multiplications of the prompt, over the measured peak of one thread


def bench(
    path: Path,
    *,
    batches: Sequence[int] = (1, 8, 32),
    prompt: int = 128,
    new_tokens: int = 64,
    pairs: int = 5,
    modes: Sequence[Mode] = MODES,
) -> tuple[Machine, list[Row]]:
    """Run every mode, and transformers on as many threads, pair by pair.

    Args:
        path: a Llama checkpoint; random weights do.
        batches: batch sizes.
        prompt: tokens of each prompt.
        new_tokens: tokens generated from each.
        pairs: how often each is run; one run before them warms up.
        modes: rows of each batch size.
    """
    pages = max(batches) * -(-(prompt + new_tokens) // 16)
    options = EngineOptions(
        dtype="bfloat16", num_pages=pages, num_embeds=max(batches) * (prompt + 2), max_batch_tokens=4096
    )
    engines = {
        m: load_engine(path, options, kernels=m.kernels, threads=m.threads, batch_invariant=m.batch_invariant)
        for m in modes
    }
    torch.set_num_threads(1)
    machine = measure_machine()
    peer = TransformersLoop(path, torch.bfloat16)
    rng, rows = np.random.default_rng(0), []
    spec = engines[modes[0]].spec
    work = Work.of(path, spec.kv_bytes_per_token)
    for batch in batches:
        prompts = rng.integers(0, spec.vocab_size, (batch, prompt)).tolist()
        ours: dict[Mode, list[Timing]] = {m: [] for m in modes}
        theirs: dict[int, list[Timing]] = {m.threads: [] for m in modes}
        runs: list[tuple[list[Timing], int, Callable[[], Timing]]] = [
            (timings, threads, lambda: peer.run(prompts, new_tokens))  # noqa: B023 - run within this turn
            for threads, timings in theirs.items()
        ]
        for m, timings in ours.items():
            loop = BareLoop(engines[m], batch, prompt, new_tokens)
            runs.append((timings, m.threads, lambda loop=loop: loop.run(prompts)))  # type: ignore[misc]  # noqa: B023
        for pair in range(pairs + 1):
            report.progress(f"engine: batch {batch}, " + (f"pair {pair} of {pairs}" if pair else "warming up"))
            for timings, threads, run in runs:
                torch.set_num_threads(threads)
                timing = run()
                if pair:
                    timings.append(timing)
            runs.reverse()  # so that none always follows the same one: a run leaves its mark on the caches
        rows += [_row(m, batch, ours[m], theirs[m.threads], work, machine, prompt, new_tokens) for m in modes]
    return machine, rows


def _row(
    mode: Mode,
    batch: int,
    ours: list[Timing],
    theirs: list[Timing],
    work: Work,
    machine: Machine,
    prompt: int,
    new_tokens: int,
) -> Row:
    ratios = [t.total_s / m.total_s for t, m in zip(theirs, ours, strict=True)]
    step_s = statistics.median(t.per_token_s for t in ours)
    prefill_s = statistics.median(t.prefill_s for t in ours)
    made = batch * new_tokens
    return Row(
        batch=batch,
        mode=mode,
        tokens_per_s=made / statistics.median(t.total_s for t in ours),
        transformers_tokens_per_s=made / statistics.median(t.total_s for t in theirs),
        ratio=statistics.median(ratios),
        worst_ratio=min(ratios),
        same_tokens=same_tokens(ours[0].tokens, theirs[0].tokens),
        target=TARGETS.get(batch) if mode == MODES[0] else None,
        prefill_ms=prefill_s * 1e3,
        step_ms=step_s * 1e3,
        read_fraction=work.step_bytes(batch, prompt + new_tokens / 2) / step_s / 1e9 / machine.read_gb_s,
        gemm_fraction=work.prefill_flops(batch, prompt) / prefill_s / 1e9 / machine.bf16_gflop_s,
    )


def tabulated(machine: Machine, rows: Sequence[Row]) -> report.Report:
    """Make the table that every benchmark prints."""
    title = "Engine: greedy text of a bare loop, 88M parameters, bf16, against transformers' generate"
    columns = ["batch", "kernels", "tokens/s", "transformers", "ratio", "worst", "goal", "prefill ms", "step ms"]
    result = report.Report("engine", title, [*columns, "of read %", "of GEMM %", "same tokens %"])
    for r in rows:
        speeds = (r.tokens_per_s, r.transformers_tokens_per_s, r.ratio, r.worst_ratio, r.target or "")
        limits = (100 * r.read_fraction, 100 * r.gemm_fraction, 100 * r.same_tokens)
        result.rows.append((r.batch, r.mode.label, *speeds, r.prefill_ms, r.step_ms, *limits))
        if r.target is not None:
            result.goals.append(report.Goal(f"batch {r.batch}", r.ratio, r.target, at_least=True))
    limits_line = f"limits of this machine on {machine.threads} thread(s): read {machine.read_gb_s:.1f} GB/s"
    result.notes.append(f"{limits_line}, bf16 GEMM {machine.bf16_gflop_s:.0f} GFLOP/s")
    fast = [r for r in rows if r.mode == MODES[0]]
    batches = [str(r.batch) for r in fast]
    result.series = [
        report.Series("tartlet", batches, [r.tokens_per_s for r in fast]),
        report.Series("transformers", batches, [r.transformers_tokens_per_s for r in fast]),
    ]
    result.x_label, result.y_label = "batch", "tokens/s"
    return result


def main() -> int:
    """Run the command line: write the 88M checkpoint, run, print the table."""
    parser = report.parser("engine", __doc__)
    parser.add_argument(
        "--model", type=Path, metavar="DIR", help="checkpoint (default: the 88M model with random weights)"
    )
    parser.add_argument(
        "--batches",
        type=report.positive,
        nargs="+",
        default=[1, 8, 32],
        metavar="N",
        help="sequences at once (default 1 8 32)",
    )
    parser.add_argument(
        "--prompt", type=report.positive, default=128, metavar="N", help="tokens of a prompt (default %(default)s)"
    )
    parser.add_argument(
        "--new-tokens", type=report.positive, default=64, metavar="N", help="tokens generated (default %(default)s)"
    )
    labels = [m.label for m in MODES]
    parser.add_argument("--kernels", nargs="+", choices=labels, default=labels, help="only these rows (default: all)")
    args = parser.parse_args()
    modes = [m for m in MODES if m.label in args.kernels]
    with tempfile.TemporaryDirectory() as scratch:
        path = args.model or random_checkpoint(Path(scratch), LLAMA_88M, dtype=torch.bfloat16)
        machine, rows = bench(
            path, batches=args.batches, prompt=args.prompt, new_tokens=args.new_tokens, pairs=args.repeat, modes=modes
        )
    return report.emit([tabulated(machine, rows)], args)


if __name__ == "__main__":
    sys.exit(main())
