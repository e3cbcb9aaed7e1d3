"""Batches on the training device: what a step sees, and where their rows are made."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from models.training.feed import MOST_UNUSED, Feed, Source, make, workers
from models.training.packing import IGNORED

CPU = torch.device("cpu")


@pytest.fixture
def source(demo_directory: Path) -> Source:
    """Rows of packed dialogues, two steps at a time."""
    return Source(demo_directory / "tokenizer.json", 2, rows=3, row_length=128, long=False, seed=5, steps=2)


def test_a_batch_holds_the_answers_tokens_behind_their_places(source: Source) -> None:
    made = make(source, 0)
    batches = list(itertools.islice(Feed(source, CPU, None, ahead=0), 2))
    for number, batch in enumerate(batches):
        labels = torch.from_numpy(made.labels[3 * number : 3 * number + 3])
        assert torch.equal(batch.tokens, torch.from_numpy(made.tokens[3 * number : 3 * number + 3]))
        assert torch.equal(batch.targets, labels[labels != IGNORED])
        flat = torch.full((labels.numel(),), IGNORED)
        flat[batch.places] = batch.targets
        assert torch.equal(flat.view_as(labels), labels)


def test_the_mask_keeps_dialogues_apart_and_hides_what_comes_later(source: Source) -> None:
    batch = next(Feed(source, CPU, None, ahead=0))
    documents, mask = batch.documents, batch.mask()
    assert documents is not None
    assert mask is not None
    assert mask.shape == (3, 1, 128, 128)
    row, _, at, seen = (index.numpy() for index in mask.nonzero(as_tuple=True))
    numbers = documents.numpy()
    assert (seen <= at).all()
    assert (numbers[row, at] == numbers[row, seen]).all()
    assert mask[:, 0].diagonal(dim1=1, dim2=2).all()
    same = np.tril(numbers[:, :, None] == numbers[:, None, :])
    assert len(row) == same.sum()


def test_long_rows_need_no_mask(demo_directory: Path) -> None:
    source = Source(demo_directory / "tokenizer.json", 2, rows=1, row_length=512, long=True, seed=5, steps=1)
    batch = next(Feed(source, CPU, None, ahead=0))
    assert batch.mask() is None
    assert batch.tokens.shape == (1, 512)


def test_a_worker_process_makes_the_same_rows_and_they_come_again_when_it_is_behind(source: Source) -> None:
    executor = workers(1)
    assert executor is not None
    try:
        feed = Feed(source, CPU, executor, ahead=1)
        first = next(feed)
        assert torch.equal(first.tokens, torch.from_numpy(make(source, 0).tokens[:3]))
        known, again = {first.tokens.numpy().tobytes()}, False
        deadline = time.monotonic() + 60
        while not again and time.monotonic() < deadline:
            tokens, again = next(feed).tokens.numpy().tobytes(), feed.repeated > 0
            assert not again or tokens in known
            known.add(tokens)
        assert again
        assert len(known) < MOST_UNUSED
    finally:
        executor.shutdown(cancel_futures=True)
