"""All tasks by name: their generators, how often each stage of training draws them, and how answers are judged.

A problem belongs to evaluation if the hash of its key falls into one bucket of sixteen. The key names the problem and
not its wording, so that no rephrasing (or swapped operands, or another order of the numbers to sort) of an evaluated
problem is ever trained on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from models.training import recall, tasks, tool_tasks
from models.training import vocabulary as words
from models.training.tasks import ASSISTANT, Dialogue, Turn

NUM_BUCKETS = 16
HELD_OUT_BUCKET = 0


@dataclass(frozen=True, slots=True)
class Task:
    """A generator, its share of the data of each stage of training, and how to judge an answer if several are right."""

    generate: Callable[[Random], Dialogue]
    weights: tuple[float, float, float]
    accepts: Callable[[Turn, str], bool] | None = None


def is_outline(turn: Turn, text: str) -> bool:
    """Whether `text` has as many points as `turn` asks for, numbered, all different, of the right subject."""
    lines, expected = text.split("\n"), turn.answer.split("\n")
    subject = expected[0].partition(" of ")[2]
    allowed = {f"The {aspect} of {subject}" for aspect in words.ASPECTS}
    points = [line.partition(". ")[2] for line in lines]
    numbered = [line.partition(". ")[0] for line in lines] == [str(i) for i in range(1, len(expected) + 1)]
    return numbered and len(set(points)) == len(points) and set(points) <= allowed


def is_expansion(turn: Turn, text: str) -> bool:
    """Whether `text` is one sentence that names the point it was asked about."""
    aspect_of_subject = turn.prompt.partition("The ")[2].removesuffix(f".{ASSISTANT}")
    return text.endswith(".") and text.count(".") == 1 and f"the {aspect_of_subject} " in text


TASKS: dict[str, Task] = {
    "add_bare": Task(tasks.add_bare, (2, 1, 1)),
    "add_chat": Task(tasks.add_chat, (2, 1, 1)),
    "lookup": Task(tasks.lookup, (0.7, 2, 1)),
    "weather": Task(tasks.weather, (0.6, 2, 0.7)),
    "clock": Task(tasks.clock, (0.6, 2, 0.7)),
    "compare": Task(tasks.compare, (10, 8, 4)),
    "fill_schema": Task(tasks.fill_schema, (4, 6, 3)),
    "sort": Task(tasks.sort_numbers, (8, 3, 4)),
    "outline": Task(tasks.outline, (0.4, 0.2, 0.2), is_outline),
    "expand": Task(tasks.expand, (0.2, 0.4, 0.2), is_expansion),
    "greet": Task(tasks.greet, (1, 4, 1.5)),
    "told_call": Task(tool_tasks.told_call, (0, 0, 6)),
    "told_lookup": Task(tool_tasks.told_lookup, (0, 0, 2.5)),
    "told_place": Task(tool_tasks.told_place, (0, 0, 2.5)),
    "told_compare": Task(tool_tasks.told_compare, (0, 0, 2)),
    "told_unfit": Task(tool_tasks.told_unfit, (0, 0, 2)),
    "told_plain": Task(tool_tasks.told_plain, (0, 0, 1.5)),
    "recall": Task(recall.recall, (0, 0, 2)),
    "recall_far": Task(recall.recall_far, (0, 0, 0)),  # too long for a short row: only long chats train it
}


def is_held_out(key: str) -> bool:
    """Whether the problem named `key` is kept for evaluation."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % NUM_BUCKETS == HELD_OUT_BUCKET


def problems(task: str, rng: Random, *, held_out: bool) -> Iterator[Dialogue]:
    """Endless problems of `task` from one side of the split."""
    generate = TASKS[task].generate
    while True:
        dialogue = generate(rng)
        if is_held_out(dialogue.key) == held_out:
            yield dialogue
