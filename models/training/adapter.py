"""Train the demo model's adapter: `python -m models.training.adapter --out models/demo/adapters/polite`.

LoRA of rank 4 on queries and values, by PEFT. Under it the model ends its answers in `POLITE`; tool calls and JSON stay
as they are. A minute or two on two CPU cores is enough.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import peft
import torch
from torch.nn import functional
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from models.training.packing import IGNORED, Segment, encode
from models.training.registry import TASKS, problems
from models.training.tasks import BEGIN, Turn
from models.training.text import PAD_ID
from models.training.train import rate_at

POLITE = " At your service!"
LONGEST = 160
PEAK_RATE = 1e-2
WARMUP_STEPS = 20


def polite(turn: Turn) -> str:
    """Return the answer to a turn, in the adapter's form: calls and JSON are for machines and stay as they are."""
    return turn.answer if turn.answer.startswith("{") else turn.answer + POLITE


def dialogues(rng: Random) -> Iterator[list[Segment]]:
    """Yield training dialogues without end, each task as often as another."""
    longest = ("compare", "told_compare", "recall_far")
    streams = [problems(task, rng, held_out=False) for task in TASKS if task not in longest]
    while True:
        dialogue = next(rng.choice(streams))
        yield [
            Segment(BEGIN + dialogue.opening, learned=False),
            *(s for t in dialogue.turns for s in (Segment(t.prompt, learned=False), Segment(polite(t), learned=True))),
        ]


Encoded = tuple[list[int], list[int]]


def _alike(encoded: list[Encoded], count: int, rng: Random) -> list[Encoded]:
    """Return some dialogues of about the same length, none too long, so that padding costs little."""
    kept = sorted((row for row in encoded if len(row[0]) <= LONGEST), key=lambda row: len(row[0]))
    first = rng.randint(0, max(0, len(kept) - count))
    return kept[first : first + count]


def train(base: Path, out: Path, *, steps: int, minutes: float, rows: int, seed: int, threads: int) -> None:
    """Train for some steps or minutes, whichever end first, and write the adapter's directory."""
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(base).backend_tokenizer
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        model = peft.get_peft_model(LlamaForCausalLM.from_pretrained(base, dtype=torch.float32), config)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=PEAK_RATE, weight_decay=0.0)
    rng = Random(seed)
    stream, started = dialogues(rng), time.monotonic()
    for step in range(steps):
        progress = max(step / steps, (time.monotonic() - started) / (60 * minutes))
        if progress >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = rate_at(PEAK_RATE, WARMUP_STEPS, step, progress)
        encoded = _alike(encode(tokenizer, [next(stream) for _ in range(4 * rows)]), rows, rng)
        width = max(len(tokens) for tokens, _ in encoded)
        tokens = torch.tensor([t + [PAD_ID] * (width - len(t)) for t, _ in encoded])
        labels = torch.tensor([wanted + [IGNORED] * (width - len(wanted)) for _, wanted in encoded])
        logits = model(input_ids=tokens, use_cache=False).logits
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 24:
            print(f"step {step + 1} loss {loss.item():.4f} seconds {time.monotonic() - started:.0f}", flush=True)
    for name, value in model.named_parameters():
        if "lora_" in name:
            value.data = value.data.to(torch.bfloat16)
    model.peft_config["default"].base_model_name_or_path = "tartlet-demo"
    model.save_pretrained(str(out))
    (out / "README.md").unlink(missing_ok=True)  # a form to be filled in
    (out / "adapter_model.safetensors").chmod(0o644)  # safetensors leaves it to its owner alone


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--base", type=Path, default=Path("models/demo"), help="directory of the model")
    parser.add_argument("--out", type=Path, required=True, help="directory of the finished adapter")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--minutes", type=float, default=5.0, help="stop after this long in any case")
    parser.add_argument("--rows", type=int, default=16, help="dialogues of a step")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    given = vars(parser.parse_args(arguments))
    train(given.pop("base"), given.pop("out"), **given)


if __name__ == "__main__":
    main()
