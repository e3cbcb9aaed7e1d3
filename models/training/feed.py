"""Batches on the training device. Worker processes make their rows while training goes on, as a GPU needs it.

Without workers the rows are made in between, each for one step. With workers that can't keep up, rows come again.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from models.training.packing import IGNORED, Rows, long_rows, pack

MOST_UNUSED, MOST_KEPT = 64, 2048
"""Steps: so many wait to be used before no more are asked of the workers; so many used ones are kept to come again."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where rows come from.

    Attributes:
        tokenizer: the tokenizer's file.
        stage: the stage whose weights say how often a task comes.
        rows: rows of a step.
        row_length: tokens of a row.
        long: whether a row is one chat, rather than several packed dialogues.
        seed: fixes the rows.
        steps: steps whose rows are made together.
    """

    tokenizer: Path
    stage: int
    rows: int
    row_length: int
    long: bool
    seed: int
    steps: int = 8


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one step on the training device.

    Attributes:
        tokens: [rows, row_length] int64.
        documents: [rows, row_length] int16, the number of the dialogue at each place; None if a row is one chat.
        places: [answer tokens] int64, the places of `tokens`, flattened, behind which an answer's token stands.
        targets: [answer tokens] int64, those tokens.
    """

    tokens: Tensor
    documents: Tensor | None
    places: Tensor
    targets: Tensor

    def mask(self) -> Tensor | None:
        """Return who may attend to whom, [rows, 1, row_length, row_length] bool; None for a plain causal mask."""
        if self.documents is None:
            return None
        length = self.tokens.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=self.tokens.device).tril()
        same = self.documents[:, :, None] == self.documents[:, None, :]
        return (same & causal)[:, None]


def make(source: Source, number: int) -> Rows:
    """Return the rows of some steps: part `number` of the source."""
    rng = Random(f"{source.seed} {source.stage} {source.long} {number}")
    tokenizer, rows = _tokenizer(source.tokenizer), source.rows * source.steps
    if source.long:
        return long_rows(tokenizer, rng, rows, source.row_length)
    return pack(tokenizer, rng, rows, source.row_length, source.stage)


@functools.cache
def _tokenizer(path: Path) -> Tokenizer:
    return Tokenizer.from_file(str(path))


def workers(count: int) -> ProcessPoolExecutor | None:
    """Return so many worker processes, or None for none. They share nothing with this process, so CUDA may run here."""
    if not count:
        return None
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return ProcessPoolExecutor(count, mp_context=context, initializer=_start_worker)


def _start_worker() -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each worker has one core


class Feed(Iterator[Batch]):
    """The endless batches of a source."""

    def __init__(self, source: Source, device: torch.device, executor: ProcessPoolExecutor | None, ahead: int) -> None:
        """Begin to make rows: `ahead` parts at a time if there are workers."""
        self._source = source
        self._device = device
        self._executor = executor
        self._ahead = ahead
        self._numbers = itertools.count()
        self._made: deque[Future[Rows]] = deque()
        self._unused: deque[Batch] = deque()
        self._used: deque[Batch] = deque(maxlen=MOST_KEPT)
        self._rng = Random(source.seed)
        self.repeated = 0
        self._collect()

    def __next__(self) -> Batch:
        """Return the next batch, or an earlier one if the workers made none since."""
        if self._executor is None:
            if not self._unused:
                self._add(make(self._source, next(self._numbers)))
            return self._unused.popleft()
        self._collect()
        if not self._unused and self._used:
            self.repeated += 1
            return self._rng.choice(self._used)
        if not self._unused:
            self._add(self._made.popleft().result())
        self._used.append(self._unused.popleft())
        return self._used[-1]

    def _collect(self) -> None:
        while self._made and self._made[0].done():
            self._add(self._made.popleft().result())
        while self._executor and len(self._made) < self._ahead and len(self._unused) < MOST_UNUSED:
            self._made.append(self._executor.submit(make, self._source, next(self._numbers)))

    def _add(self, made: Rows) -> None:
        for first in range(0, len(made.tokens), self._source.rows):
            span = slice(first, first + self._source.rows)
            labels = made.labels[span].ravel()
            places = np.flatnonzero(labels != IGNORED)
            self._unused.append(
                Batch(
                    self._moved(made.tokens[span]),
                    None if self._source.long else self._moved(made.documents[span]),
                    self._moved(places),
                    self._moved(labels[places]),
                )
            )

    def _moved(self, array: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else tensor
