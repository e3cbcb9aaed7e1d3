"""The torch engine in a plain loop, beside transformers' `generate` on the same weights.

The loop of `BareLoop` is nothing but `Engine.step`: it is also the baseline that `bench overhead` compares whole
programs with. Pairs are interleaved and ratios taken pair by pair, because other work on the machine changes its speed.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.harness import report
from bench.product.common import EmbedTxt, Forward, Sample, Step
from bench.product.worker import LLAMA_88M, Engine, EngineOptions, load_engine, random_checkpoint

TARGETS = {1: 1.2, 8: 1.6, 32: 1.9}
"""Least speed over transformers by batch size."""


@dataclass(frozen=True, slots=True)
class Timing:
    """One run: seconds for the prompt, seconds for the rest, and what was generated."""

    prefill_s: float
    decode_s: float
    cpu_s: float  # of this process over both: what a machine that does other work still tells truly
    tokens: list[list[int]]  # [batch][new_tokens]

    @property
    def total_s(self) -> float:
        """Seconds from prompt to last token."""
        return self.prefill_s + self.decode_s

    @property
    def per_token_s(self) -> float:
        """Seconds an output token after the first."""
        return self.decode_s / max(1, len(self.tokens[0]) - 1)


class BareLoop:
    """Greedy text of a batch of prompts by calls of `Engine.step` and nothing else.

    Each sequence has a lane, pages, two embeds a prompt token and one token slot; a decode step is one embed, one
    forward and one sample batch, as control would send it.
    """

    def __init__(self, engine: Engine, batch: int, prompt: int, new_tokens: int) -> None:
        self._engine, self._batch, self._prompt, self._new = engine, batch, prompt, new_tokens
        size = engine.spec.page_size
        self._per = -(-(prompt + new_tokens) // size)  # pages a sequence
        needed = {"num_pages": batch * self._per, "num_embeds": batch * (prompt + 2), "num_slots": batch}
        for name, count in needed.items():
            if getattr(engine.spec, name) < count:
                raise ValueError(f"the engine has {getattr(engine.spec, name)} {name}, the loop needs {count}")
        self._lane = np.arange(batch, dtype=np.uint32)
        self._pages = np.arange(batch * self._per, dtype=np.int32)
        self._number = 0

    def run(self, prompts: Sequence[Sequence[int]]) -> Timing:
        """Generate from prompts [batch][prompt]."""
        self._engine.reset()
        cpu = time.process_time()
        start = time.perf_counter()
        tokens = [self._step(np.asarray(prompts, np.int32), 0)]
        middle = time.perf_counter()
        tokens.extend(self._step(None, self._prompt + i) for i in range(self._new - 1))
        end = time.perf_counter()
        return Timing(middle - start, end - middle, time.process_time() - cpu, np.stack(tokens, 1).tolist())

    def _step(self, prompts: np.ndarray | None, position: int) -> np.ndarray:
        """One step from `position` on: the prompts, or the token in each sequence's slot. Returns [batch] tokens."""
        b = self._batch
        n = 1 if prompts is None else self._prompt
        indptr = np.arange(b + 1, dtype=np.int32)
        embed = np.arange(b * n, dtype=np.int32)
        last = np.arange(b, dtype=np.int32) + b * self._prompt
        positions = np.tile(np.arange(position, position + n, dtype=np.int32), b)
        none = np.full(b * n, -1, np.int32)
        slot = np.arange(b, dtype=np.int32)
        pages = -(-(position + n) // self._engine.spec.page_size)  # that hold something by the end of the step
        listed = self._pages.reshape(b, self._per)[:, :pages].reshape(-1)
        batches = (
            EmbedTxt(
                lane=self._lane,
                indptr=indptr * n,
                embed=embed,
                token=none if prompts is None else prompts.reshape(-1),
                slot=slot if prompts is None else none,
                position=positions,
            ),
            Forward(
                lane=self._lane,
                ikv=listed,
                ikv_indptr=indptr * pages,
                iemb=embed,
                iemb_indptr=indptr * n,
                okv=listed,
                okv_indptr=indptr * pages,
                okv_offset=np.full(b, position, np.int32),
                oemb=last,
                oemb_indptr=indptr,
                mask_bits=np.zeros(0, np.uint8),
                mask_indptr=np.zeros(b + 1, np.int32),
            ),
            Sample(
                lane=self._lane,
                embed=last,
                slot=slot,
                temperature=np.zeros(b, np.float32),
                top_k=np.zeros(b, np.int32),
                top_p=np.ones(b, np.float32),
                min_p=np.zeros(b, np.float32),
                seed=np.zeros(b, np.uint64),
                draw=np.zeros(b, np.uint32),
                stop=np.zeros(0, np.int32),
                stop_indptr=np.zeros(b + 1, np.int32),
            ),
        )
        self._number += 1
        result = self._engine.step(Step(self._number, batches))
        for answer in result.results:
            if answer.status.any():
                raise RuntimeError(f"a command of the loop did not run: {answer.status.tolist()} {answer.detail}")
        return result.results[2].token


class TransformersLoop:
    """transformers' `generate` on the same checkpoint."""

    def __init__(self, path: Path, dtype: torch.dtype) -> None:
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        self._model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()

    @torch.inference_mode()
    def run(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> Timing:
        """Generate greedily; `prefill_s` is not told apart."""
        ids = torch.tensor(prompts)
        cpu = time.process_time()
        start = time.perf_counter()
        out = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            min_new_tokens=new_tokens,
            max_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        end = time.perf_counter()
        return Timing(0.0, end - start, time.process_time() - cpu, out[:, ids.shape[1] :].tolist())


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
class Row:
    """One batch size in one mode: medians over the pairs."""

    batch: int
    batch_invariant: bool
    tokens_per_s: float
    transformers_tokens_per_s: float
    ratio: float  # median of the pairs' ratios
    worst_ratio: float
    cpu_ratio: float  # the same from processor seconds
    target: float | None  # of the ratio; none for batch_invariant
    prefill_ms: float
    step_ms: float  # per decode step
    read_fraction: float  # weights and KV read a step, over the measured bandwidth
    gemm_fraction: float  # multiplications of the prompt, over the measured peak


def bench(
    path: Path, *, batches: Sequence[int] = (1, 8, 32), prompt: int = 128, new_tokens: int = 64, pairs: int = 5
) -> tuple[Machine, list[Row]]:
    """Interleaved runs of both modes and of transformers, pair by pair.

    Args:
        path: a Llama checkpoint; random weights do.
        batches: batch sizes.
        prompt: tokens of each prompt.
        new_tokens: tokens generated from each.
        pairs: how often each is run; one run before them warms up.
    """
    pages = max(batches) * -(-(prompt + new_tokens) // 16)
    options = EngineOptions(
        dtype="bfloat16", num_pages=pages, num_embeds=max(batches) * (prompt + 2), max_batch_tokens=4096
    )
    engines = {on: load_engine(path, options, batch_invariant=on) for on in (False, True)}
    machine = measure_machine()
    peer = TransformersLoop(path, torch.bfloat16)
    rng, rows = np.random.default_rng(0), []
    weights = sum(f.stat().st_size for f in path.glob("*.safetensors"))
    for batch in batches:
        prompts = rng.integers(0, engines[False].spec.vocab_size, (batch, prompt)).tolist()
        loops = {on: BareLoop(engine, batch, prompt, new_tokens) for on, engine in engines.items()}
        mine: dict[bool, list[Timing]] = {False: [], True: []}
        theirs: list[Timing] = []
        runs: list[tuple[list[Timing], Callable[[], Timing]]] = [
            (theirs, partial(peer.run, prompts, new_tokens)),
            *((mine[on], partial(loop.run, prompts)) for on, loop in loops.items()),
        ]
        for pair in range(pairs + 1):
            report.progress(f"engine: batch {batch}, " + (f"pair {pair} of {pairs}" if pair else "warming up"))
            for timings, run in runs:
                timing = run()
                if pair:
                    timings.append(timing)
            runs.reverse()  # so that none always follows the same one: a run leaves its mark on the caches
        spec = engines[False].spec
        context = spec.kv_bytes_per_token * batch * (prompt + new_tokens / 2)
        for on, timings in mine.items():
            ratios = [t.total_s / m.total_s for t, m in zip(theirs, timings, strict=True)]
            step_s = statistics.median(t.per_token_s for t in timings)
            prefill_s = statistics.median(t.prefill_s for t in timings)
            made = batch * new_tokens
            rows.append(
                Row(
                    batch=batch,
                    batch_invariant=on,
                    tokens_per_s=made / statistics.median(t.total_s for t in timings),
                    transformers_tokens_per_s=made / statistics.median(t.total_s for t in theirs),
                    ratio=statistics.median(ratios),
                    worst_ratio=min(ratios),
                    cpu_ratio=statistics.median(t.cpu_s / m.cpu_s for t, m in zip(theirs, timings, strict=True)),
                    target=None if on else TARGETS.get(batch),
                    prefill_ms=prefill_s * 1e3,
                    step_ms=step_s * 1e3,
                    read_fraction=(weights + context) / step_s / 1e9 / machine.read_gb_s,
                    gemm_fraction=weights * batch * prompt / prefill_s / 1e9 / machine.bf16_gflop_s,
                )
            )
    return machine, rows


def tabulated(machine: Machine, rows: Sequence[Row]) -> report.Report:
    """The results as every benchmark prints them."""
    title = "Engine: greedy text of a bare loop, 88M parameters, bf16, one thread, against transformers' generate"
    columns = ["batch", "invariant", "tokens/s", "transformers", "ratio", "worst", "goal", "prefill ms", "step ms"]
    result = report.Report("engine", title, [*columns, "of read", "of GEMM"])
    for r in rows:
        mode = "on" if r.batch_invariant else "off"
        speeds = (r.tokens_per_s, r.transformers_tokens_per_s, r.ratio, r.worst_ratio, r.target or "")
        limits = (r.prefill_ms, r.step_ms, f"{r.read_fraction:.0%}", f"{r.gemm_fraction:.0%}")
        result.rows.append((r.batch, mode, *speeds, *limits))
        if r.target is not None:
            result.goals.append(report.Goal(f"batch {r.batch}", r.ratio, r.target, at_least=True))
    limits_line = f"limits of this machine on {machine.threads} thread(s): read {machine.read_gb_s:.1f} GB/s"
    result.notes.append(f"{limits_line}, bf16 GEMM {machine.bf16_gflop_s:.0f} GFLOP/s")
    off = [r for r in rows if not r.batch_invariant]
    batches = [str(r.batch) for r in off]
    result.series = [
        report.Series("tartlet", batches, [r.tokens_per_s for r in off]),
        report.Series("transformers", batches, [r.transformers_tokens_per_s for r in off]),
    ]
    result.x_label, result.y_label = "batch", "tokens/s"
    return result


def main() -> int:
    """Command line: write the 88M checkpoint, run, print the table."""
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
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        path = args.model or random_checkpoint(Path(scratch), LLAMA_88M, dtype=torch.bfloat16)
        machine, rows = bench(
            path, batches=args.batches, prompt=args.prompt, new_tokens=args.new_tokens, pairs=args.repeat
        )
    return report.emit([tabulated(machine, rows)], args)


if __name__ == "__main__":
    sys.exit(main())
