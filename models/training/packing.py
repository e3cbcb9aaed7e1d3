"""Dialogues packed into fixed rows of tokens, with a mask that keeps the dialogues of a row apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from models.training.long_chats import LongChat
from models.training.registry import TASKS, problems
from models.training.tasks import BEGIN, SYSTEM, Dialogue
from models.training.text import END_ID, PAD_ID
from models.training.vocabulary import SYSTEM_PROMPTS

IGNORED = -100
SECOND_QUESTION_SHARE = 0.15
SYSTEM_PROMPT_SHARE = 0.08
BARE_WITHOUT_BEGIN_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Rows:
    """Packed token rows; all arrays are [num_rows, row_length].

    `labels` holds the token to predict at each place (already shifted by one), or `IGNORED` where the next token is
    not the model's to write. `documents` numbers the dialogues of a row: 1, 2, ...; 0 is padding.
    """

    tokens: NDArray[np.int64]
    labels: NDArray[np.int64]
    documents: NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of text and whether the model learns to write it."""

    text: str
    learned: bool


def conversations(rng: Random, stage: int = 0) -> Iterator[list[Segment]]:
    """Endless training conversations: problems of all tasks by the stage's weights, some two in a row."""
    names = list(TASKS)
    weights = [task.weights[stage] for task in TASKS.values()]
    in_chats = [name for name in names if name != "add_bare" and not name.startswith("told_")]
    streams = {task: problems(task, rng, held_out=False) for task in names}
    while True:
        task = rng.choices(names, weights)[0]
        dialogues = [next(streams[task])]
        bare = task == "add_bare"
        tools = dialogues[0].opening
        if not bare and not tools and rng.random() < SECOND_QUESTION_SHARE:
            dialogues.append(next(streams[rng.choices(in_chats, [TASKS[name].weights[stage] for name in in_chats])[0]]))
        opening = "" if bare and rng.random() < BARE_WITHOUT_BEGIN_SHARE else BEGIN + tools
        if not bare and rng.random() < SYSTEM_PROMPT_SHARE:
            opening += SYSTEM + rng.choice(SYSTEM_PROMPTS)
        yield [Segment(opening, learned=False), *_segments(dialogues)]


def _segments(dialogues: list[Dialogue]) -> Iterator[Segment]:
    for dialogue in dialogues:
        for turn in dialogue.turns:
            yield Segment(turn.prompt, learned=False)
            yield Segment(turn.answer, learned=True)


def encode(tokenizer: Tokenizer, batch: list[list[Segment]]) -> list[tuple[list[int], list[int]]]:
    """(tokens, labels) of every conversation, labels shifted by one. Segments are encoded apart, as at inference."""
    flat = tokenizer.encode_batch([s.text for segments in batch for s in segments], add_special_tokens=False)
    pieces = iter(flat)
    encoded = []
    for segments in batch:
        tokens: list[int] = []
        targets: list[int] = []
        for segment in segments:
            ids = next(pieces).ids
            if segment.learned:
                ids = [*ids, END_ID]
            tokens += ids
            targets += ids if segment.learned else [IGNORED] * len(ids)
        encoded.append((tokens, [*targets[1:], IGNORED]))
    return encoded


def pack(tokenizer: Tokenizer, rng: Random, num_rows: int, row_length: int, stage: int = 0) -> Rows:
    """Fill `num_rows` rows with fresh conversations, first fit among the rows still open."""
    tokens = np.full((num_rows, row_length), PAD_ID, np.int64)
    labels = np.full((num_rows, row_length), IGNORED, np.int64)
    documents = np.zeros((num_rows, row_length), np.int16)
    used = np.zeros(num_rows, np.int64)
    stream = conversations(rng, stage)
    open_rows = 64
    first = 0
    while first < num_rows:
        for ids, targets in encode(tokenizer, [next(stream) for _ in range(256)]):
            if len(ids) > row_length:
                continue
            window = used[first : first + open_rows]
            fits = np.flatnonzero(window + len(ids) <= row_length)
            if fits.size == 0:
                first += open_rows
                if first >= num_rows:
                    break
                fits = np.zeros(1, np.int64)
            row = first + int(fits[0])
            span = slice(int(used[row]), int(used[row]) + len(ids))
            tokens[row, span], labels[row, span] = ids, targets
            documents[row, span] = documents[row].max() + 1
            used[row] += len(ids)
    return Rows(tokens, labels, documents)


def long_rows(tokenizer: Tokenizer, rng: Random, num_rows: int, row_length: int) -> Rows:
    """Fill each row with one chat, which is cut off where the row ends."""
    tokens = np.full((num_rows, row_length), PAD_ID, np.int64)
    labels = np.full((num_rows, row_length), IGNORED, np.int64)
    for row in range(num_rows):
        chat = LongChat(rng, held_out=False)
        parts = chat.parts()
        ids, targets = encode(tokenizer, [[Segment(BEGIN + chat.opening, learned=False)]])[0]
        while len(ids) < row_length:
            more, wanted = encode(tokenizer, [list(_segments([next(parts).dialogue]))])[0]
            ids, targets = ids + more, targets + wanted
        tokens[row], labels[row] = ids[:row_length], targets[:row_length]
    return Rows(tokens, labels, np.ones((num_rows, row_length), np.int16))
