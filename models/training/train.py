"""Train the demo model: `python -m models.training.train --out models/demo`.

Plain AdamW on rows of packed dialogues that are generated while training goes on, so no problem is seen twice but by
chance. Two stages: in the second, tasks that need little to be learned but long to be without a fault come more often.
In each the learning rate falls linearly, by steps or by the minutes allowed, whichever is further on.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM

from models.training.checkpoint import export, new_model
from models.training.packing import IGNORED, conversations, pack
from models.training.text import train_tokenizer

TOKENIZER_CORPUS = 20_000
ROWS_PER_POOL = 1024


@dataclass(frozen=True, slots=True)
class Stage:
    """Its share of the time and its highest learning rate; its weights are the tasks' (`Task.weights`)."""

    share: float
    peak_rate: float


STAGES = (Stage(45 / 59, 2e-3), Stage(14 / 59, 1e-3))


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a run does. `minutes` is a limit on wall-clock time; `rows` are rows per step of `row_length` tokens."""

    steps: int
    minutes: float
    rows: int
    row_length: int
    warmup_steps: int
    seed: int
    threads: int
    compiled: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """`tokens` and `labels` [rows, row_length] int64; `mask` [rows, 1, row_length, row_length] bool, true: attend."""

    tokens: Tensor
    labels: Tensor
    mask: Tensor


def batches(tokenizer: Tokenizer, rng: Random, rows: int, row_length: int, stage: int) -> Iterator[Batch]:
    """Endless batches of fresh data of a stage."""
    causal = torch.ones(row_length, row_length, dtype=torch.bool).tril()
    while True:
        pool = pack(tokenizer, rng, ROWS_PER_POOL, row_length, stage)
        for start in range(0, ROWS_PER_POOL - rows + 1, rows):
            span = slice(start, start + rows)
            documents = torch.from_numpy(pool.documents[span])
            same = documents[:, :, None] == documents[:, None, :]
            yield Batch(
                torch.from_numpy(pool.tokens[span]), torch.from_numpy(pool.labels[span]), (same & causal)[:, None]
            )


def loss_of(model: LlamaForCausalLM, batch: Batch) -> Tensor:
    """Mean cross-entropy over the tokens that the model is to write; only their logits are computed."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model.model(batch.tokens, attention_mask=batch.mask, use_cache=False).last_hidden_state
        wanted = batch.labels != IGNORED
        logits = model.lm_head(hidden[wanted])
    return functional.cross_entropy(logits.float(), batch.labels[wanted])


def rate_at(peak_rate: float, warmup_steps: int, step: int, progress: float) -> float:
    """The learning rate: a short warm-up, then a straight line to 2% of the peak; `progress` goes from 0 to 1."""
    return peak_rate * min(1.0, (step + 1) / warmup_steps) * (1 - 0.98 * min(1.0, progress))


def new_optimizer(model: LlamaForCausalLM) -> torch.optim.AdamW:
    """AdamW without weight decay on the norms."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.98), fused=True)


def train(recipe: Recipe, out: Path, work: Path, *, from_stage: int) -> None:
    """Train, print progress, keep `work` resumable, and write the checkpoint to `out` at intervals and at the end."""
    torch.set_num_threads(recipe.threads)
    torch.manual_seed(recipe.seed + from_stage)
    rng = Random(recipe.seed + from_stage)
    work.mkdir(parents=True, exist_ok=True)
    model = new_model()
    if from_stage:
        tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
        model.load_state_dict(torch.load(work / "weights.pt", weights_only=True))
    else:
        stream = conversations(rng)
        tokenizer = train_tokenizer("".join(s.text for s in next(stream)) for _ in range(TOKENIZER_CORPUS))
        tokenizer.save(str(work / "tokenizer.json"))
    if recipe.compiled:
        model.model.compile(dynamic=False)
    print(f"parameters {sum(p.numel() for p in model.parameters())}", flush=True)
    started = time.monotonic()
    for stage in range(from_stage, len(STAGES)):
        _run_stage(recipe, stage, model, tokenizer, rng, lambda: _save(model, tokenizer, out, work))
    print(f"done: {out} after {time.monotonic() - started:.0f} seconds", flush=True)


def _run_stage(
    recipe: Recipe,
    number: int,
    model: LlamaForCausalLM,
    tokenizer: Tokenizer,
    rng: Random,
    save: Callable[[], None],
) -> None:
    stage = STAGES[number]
    steps, seconds = round(recipe.steps * stage.share), 60 * recipe.minutes * stage.share
    print(f"stage {number + 1} of {len(STAGES)}: at most {steps} steps and {seconds:.0f} seconds", flush=True)
    optimizer = new_optimizer(model)
    started = time.monotonic()
    recent: list[float] = []
    for step, batch in enumerate(batches(tokenizer, rng, recipe.rows, recipe.row_length, number)):
        elapsed_s = time.monotonic() - started
        if step >= steps or elapsed_s >= seconds:
            break
        rate = rate_at(stage.peak_rate, recipe.warmup_steps, step, max(step / steps, elapsed_s / seconds))
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recent.append(loss.item())
        if step % 50 == 49:
            print(f"step {step + 1} loss {sum(recent) / len(recent):.4f} seconds {elapsed_s:.0f}", flush=True)
            recent.clear()
        if step % 500 == 499:
            save()
    save()


def _save(model: LlamaForCausalLM, tokenizer: Tokenizer, out: Path, work: Path) -> None:
    unfinished = work / "weights.pt.new"
    torch.save(model.state_dict(), unfinished)
    unfinished.replace(work / "weights.pt")
    export(model, tokenizer, out)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--out", type=Path, required=True, help="directory of the finished checkpoint")
    parser.add_argument("--work", type=Path, default=Path("models/work"), help="fp32 weights, to resume from")
    parser.add_argument(
        "--from-stage", type=int, default=0, choices=range(len(STAGES)), help="from the weights in --work"
    )
    parser.add_argument("--steps", type=int, default=14_000)
    parser.add_argument("--minutes", type=float, default=59.0, help="stop after this long in any case")
    parser.add_argument("--rows", type=int, default=24, help="rows of a step")
    parser.add_argument("--row-length", type=int, default=192, help="tokens of a row")
    parser.add_argument("--warmup-steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--compiled", action="store_true", help="compile with torch.compile: needs a C++ compiler, twice as fast"
    )
    options: dict[str, Any] = vars(parser.parse_args(arguments))
    out, work, from_stage = options.pop("out"), options.pop("work"), options.pop("from_stage")
    train(Recipe(**options), out, work, from_stage=from_stage)


if __name__ == "__main__":
    main()
