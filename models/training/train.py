"""Train the demo model: `python -m models.training.train --out models/demo`.

Plain AdamW on rows of packed dialogues that are generated while training goes on, so no problem is seen twice but by
chance, or where a GPU is faster than the processes that generate. Three stages: in the second, tasks that need little
to be learned but long to be without a fault come more often. The third adds chats that are given tools, and rows of one
chat as long as the window. In each stage the learning rate falls linearly, by steps or by the minutes allowed,
whichever is further on.

    python -m models.training.train --from-stage 2 --base models/demo --minutes 35 --out DIR  # the third stage alone

On a GPU (`--device`) a step has 16 times the rows (`--scale`), and the learning rate is twice as high.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM

from models.training.checkpoint import MAX_LENGTH, export, new_model
from models.training.feed import Batch, Feed, Source, workers
from models.training.packing import conversations
from models.training.text import train_tokenizer

TOKENIZER_CORPUS = 20_000
PRINT_EVERY_S, SAVE_EVERY_S = 5.0, 20.0
GPU_SCALE = 16


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage; its weights are the tasks' (`Task.weights`).

    Attributes:
        minutes: its part of the time, of all stages' minutes.
        peak_rate: its highest learning rate, at scale 1.
        rows: rows of packed dialogues of a step, at scale 1.
        row_length: tokens of such a row.
        long_rows: rows of one chat as long as the window, of a step.
    """

    minutes: float
    peak_rate: float
    rows: int = 24
    row_length: int = 192
    long_rows: int = 0


STAGES = (Stage(45, 2e-3), Stage(14, 1e-3), Stage(35, 8e-4, rows=8, row_length=256, long_rows=1))


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a run does: at most so many steps and minutes of wall-clock time, shared by the stages that it runs.

    Attributes:
        scale: multiplies the rows of a step, and by its fourth root the learning rate.
        workers: processes that generate rows; without any the training process does.
    """

    steps: int
    minutes: float
    warmup_steps: int
    seed: int
    threads: int
    compiled: bool
    dtype: str
    device: str
    scale: int
    workers: int


def loss_of(model: LlamaForCausalLM, batch: Batch, dtype: str) -> Tensor:
    """Cross-entropy, summed over the tokens that the model is to write; only their logits are computed."""
    with torch.autocast(batch.tokens.device.type, dtype=torch.bfloat16, enabled=dtype == "bfloat16"):
        hidden = model.model(batch.tokens, attention_mask=batch.mask(), use_cache=False).last_hidden_state
        logits = model.lm_head(hidden.flatten(0, 1).index_select(0, batch.places))
    return functional.cross_entropy(logits.float(), batch.targets, reduction="sum")


def rate_at(peak_rate: float, warmup_steps: int, step: int, progress: float) -> float:
    """The learning rate: a short warm-up, then a straight line to 2% of the peak; `progress` goes from 0 to 1."""
    return peak_rate * min(1.0, (step + 1) / warmup_steps) * (1 - 0.98 * min(1.0, progress))


def new_optimizer(model: LlamaForCausalLM) -> torch.optim.AdamW:
    """AdamW without weight decay on the norms."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.98), fused=True)


def train(recipe: Recipe, out: Path, work: Path, *, from_stage: int, base: Path | None) -> None:
    """Train, print progress, keep `work` resumable, and write the checkpoint to `out` at intervals and at the end.

    A run from a later stage continues the checkpoint `base`, or the weights in `work` without one.
    """
    torch.set_num_threads(recipe.threads)
    torch.manual_seed(recipe.seed + from_stage)
    work.mkdir(parents=True, exist_ok=True)
    model = new_model()
    tokenizer_file = (base or work) / "tokenizer.json"
    if base is not None:
        model.load_state_dict(LlamaForCausalLM.from_pretrained(base, dtype=torch.float32).state_dict())
    elif from_stage:
        model.load_state_dict(torch.load(work / "weights.pt", weights_only=True))
    else:
        stream = conversations(Random(recipe.seed))
        corpus = ("".join(s.text for s in next(stream)) for _ in range(TOKENIZER_CORPUS))
        train_tokenizer(corpus).save(str(tokenizer_file))
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    device: Any = torch.device(recipe.device)  # `Any`: transformers mistypes `to`
    model.to(device)
    if recipe.compiled:
        model.model.compile(dynamic=False)
    print(f"parameters {sum(p.numel() for p in model.parameters())} on {recipe.device}", flush=True)
    started = time.monotonic()
    executor = workers(recipe.workers)
    try:
        for stage in range(from_stage, len(STAGES)):
            feeds = [
                Feed(source, device, executor, recipe.workers) for source in sources(recipe, stage, tokenizer_file)
            ]
            minutes = recipe.minutes * STAGES[stage].minutes / sum(s.minutes for s in STAGES[from_stage:])
            _run_stage(recipe, stage, minutes, model, feeds, lambda: _save(model, tokenizer, out, work))
    finally:
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)
    print(f"done: {out} after {time.monotonic() - started:.0f} seconds", flush=True)


def sources(recipe: Recipe, number: int, tokenizer: Path) -> list[Source]:
    """Return what the steps of a stage take their rows from: packed rows, and in some stages long ones."""
    stage, seed = STAGES[number], recipe.seed
    found = [Source(tokenizer, number, stage.rows * recipe.scale, stage.row_length, long=False, seed=seed)]
    if stage.long_rows:
        found.append(Source(tokenizer, number, stage.long_rows * recipe.scale, MAX_LENGTH, long=True, seed=seed))
    return found


def _run_stage(
    recipe: Recipe,
    number: int,
    minutes: float,
    model: LlamaForCausalLM,
    feeds: Sequence[Feed],
    save: Callable[[], None],
) -> None:
    steps, seconds = round(recipe.steps * minutes / recipe.minutes), 60 * minutes
    print(f"stage {number + 1} of {len(STAGES)}: at most {steps} steps and {seconds:.0f} seconds", flush=True)
    optimizer = new_optimizer(model)
    peak_rate = STAGES[number].peak_rate * recipe.scale**0.25
    batches = [next(feed) for feed in feeds]  # the first ones may take long
    started = saved = time.monotonic()
    printed = -math.inf
    losses: list[Tensor] = []
    for step in range(steps):
        now = time.monotonic()
        if now - started >= seconds:
            break
        rate = rate_at(peak_rate, recipe.warmup_steps, step, max(step / steps, (now - started) / seconds))
        for group in optimizer.param_groups:
            group["lr"] = rate
        losses.append(_step(model, optimizer, batches, recipe.dtype))
        batches = [next(feed) for feed in feeds]
        if now - printed >= PRINT_EVERY_S:
            loss = torch.stack(losses).mean().item()  # waits for the device, so not at every step
            repeated = sum(feed.repeated for feed in feeds)
            print(f"step {step + 1} loss {loss:.4f} repeated {repeated} seconds {now - started:.0f}", flush=True)
            if not math.isfinite(loss):
                raise FloatingPointError(f"the loss is {loss} at step {step + 1}: lower the learning rate")
            losses.clear()
            printed = now
        if now - saved >= SAVE_EVERY_S:
            save()
            saved = now
    save()


def _step(model: LlamaForCausalLM, optimizer: torch.optim.AdamW, batches: Sequence[Batch], dtype: str) -> Tensor:
    """Make one step; return the mean loss of an answer's token, still on the device."""
    optimizer.zero_grad()
    answer_tokens = sum(len(batch.targets) for batch in batches)
    losses = []
    for batch in batches:
        loss = loss_of(model, batch, dtype) / answer_tokens
        loss.backward()
        losses.append(loss.detach())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return torch.stack(losses).sum()


def _save(model: LlamaForCausalLM, tokenizer: Tokenizer, out: Path, work: Path) -> None:
    unfinished = work / "weights.pt.new"
    torch.save({name: tensor.cpu() for name, tensor in model.state_dict().items()}, unfinished)
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
        "--from-stage", type=int, default=0, choices=range(len(STAGES)), help="from the weights in --work or --base"
    )
    parser.add_argument("--base", type=Path, help="checkpoint to continue, with --from-stage")
    parser.add_argument("--steps", type=int, default=22_000)
    parser.add_argument("--minutes", type=float, default=94.0, help="stop after this long in any case")
    parser.add_argument("--warmup-steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--compiled", action="store_true", help="compile with torch.compile: needs a C++ compiler, twice as fast"
    )
    parser.add_argument(
        "--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="float32 is faster without AVX-512"
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: CUDA if there is one")
    parser.add_argument("--scale", type=int, help=f"rows of a step, in multiples (default 1, with CUDA {GPU_SCALE})")
    parser.add_argument("--workers", type=int, help="processes that make rows (default none, with CUDA a core each)")
    options: dict[str, Any] = vars(parser.parse_args(arguments))
    if options["base"] is not None and not options["from_stage"]:
        parser.error("--base needs --from-stage: the first stage begins with random weights")
    if options["device"] == "auto":
        options["device"] = "cuda" if torch.cuda.is_available() else "cpu"
    on_gpu = options["device"] == "cuda"
    if options["scale"] is None:
        options["scale"] = GPU_SCALE if on_gpu else 1
    if options["workers"] is None:
        options["workers"] = max(1, (os.cpu_count() or 1) - 1) if on_gpu else 0
    out, work = options.pop("out"), options.pop("work")
    from_stage, base = options.pop("from_stage"), options.pop("base")
    train(Recipe(**options), out, work, from_stage=from_stage, base=base)


if __name__ == "__main__":
    main()
