"""Measure answers by their place in chats as long as the window: whether they are right, and their loss.

An answer is right if the most probable token is the expected one at each of its places, which is when greedy generation
gives exactly that answer. One forward pass over a chat therefore judges all of its answers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch.nn import functional
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from models.training.checkpoint import MAX_LENGTH
from models.training.packing import Segment, encode
from models.training.registry import TASKS, problems
from models.training.tasks import BEGIN, Dialogue

EDGES = (0, 96, 192, 256, 384, 512, 1024, MAX_LENGTH)
ASKED = tuple(
    name
    for name, task in TASKS.items()
    if task.accepts is None and name not in {"add_bare", "recall_far"} and not name.startswith("told_")
)
"""Tasks of a chat without given tools that have one right answer, and that leave room for others in the window."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One answer.

    Attributes:
        position: the position of its first token.
        right: whether all its tokens are the most probable ones.
        loss: the mean cross-entropy of its tokens, in nats.
    """

    position: int
    right: bool
    loss: float


def judged(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, chats: int, seed: int) -> list[Judged]:
    """Return the answers of chats that fill the window with held-out problems."""
    rng = Random(f"{seed} positions")
    return [answer for _ in range(chats) for answer in _of_chat(model, tokenizer, _dialogues(rng))]


def _dialogues(rng: Random) -> Iterator[Dialogue]:
    streams = [problems(name, rng, held_out=True) for name in ASKED]
    while True:
        yield next(rng.choice(streams))


def _of_chat(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, dialogues: Iterator[Dialogue]
) -> list[Judged]:
    spans: list[tuple[int, int]] = []  # of the answers: first token, end
    [(ids, _)] = encode(tokenizer.backend_tokenizer, [[Segment(BEGIN, learned=False)]])
    while len(ids) <= MAX_LENGTH:
        for turn in next(dialogues).turns:
            (asked, _), (answer, _) = encode(
                tokenizer.backend_tokenizer,
                [[Segment(turn.prompt, learned=False)], [Segment(turn.answer, learned=True)]],
            )
            spans.append((len(ids) + len(asked), len(ids) + len(asked) + len(answer)))
            ids = [*ids, *asked, *answer]
    ids = ids[:MAX_LENGTH]
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids], device=model.device), use_cache=False).logits[0, :-1].float().cpu()
    wanted = torch.tensor(ids[1:])
    losses = functional.cross_entropy(logits, wanted, reduction="none")
    hits = logits.argmax(-1) == wanted
    return [
        Judged(begin, bool(hits[begin - 1 : end - 1].all()), losses[begin - 1 : end - 1].mean().item())
        for begin, end in spans
        if end <= MAX_LENGTH
    ]


def table(answers: Sequence[Judged]) -> str:
    """The answers by position, as a Markdown table."""
    lines = ["| Position of the answer | Answers | Right | Loss a token |", "|---|---:|---:|---:|"]
    for low, high in itertools.pairwise(EDGES):
        there = [answer for answer in answers if low <= answer.position < high]
        if there:
            right = sum(answer.right for answer in there) / len(there)
            loss = sum(answer.loss for answer in there) / len(there)
            lines.append(f"| {low} to {high - 1} | {len(there)} | {100 * right:.1f}% | {loss:.3f} |")
    return "\n".join(lines)
