"""Rows of training tokens: what is learned, what is masked, and that dialogues don't mix."""

from __future__ import annotations

import itertools
from random import Random

import numpy as np
import pytest
from tokenizers import Tokenizer

from models.training.packing import IGNORED, Rows, Segment, conversations, encode, pack
from models.training.text import BEGIN_ID, END_ID, PAD_ID, train_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """A tokenizer trained on a little data."""
    stream = conversations(Random(0))
    return train_tokenizer("".join(s.text for s in c) for c in itertools.islice(stream, 2000))


@pytest.fixture(scope="module")
def rows(tokenizer: Tokenizer) -> Rows:
    """Packed rows."""
    return pack(tokenizer, Random(1), num_rows=128, row_length=192)


def test_only_answers_and_their_end_marker_are_learned(tokenizer: Tokenizer) -> None:
    segments = [Segment("<|begin|>", learned=False), Segment("1+1=", learned=False), Segment(" 2", learned=True)]
    [(tokens, labels)] = encode(tokenizer, [segments])
    assert tokenizer.decode(tokens, skip_special_tokens=False) == "<|begin|>1+1= 2<|end|>"
    learned = [label for label in labels if label != IGNORED]
    assert tokenizer.decode(learned, skip_special_tokens=False) == " 2<|end|>"
    assert labels[-1] == IGNORED


def test_labels_are_the_next_tokens(rows: Rows) -> None:
    learned = rows.labels[:, :-1] != IGNORED
    assert (rows.labels[:, :-1][learned] == rows.tokens[:, 1:][learned]).all()
    assert (rows.documents[:, :-1][learned] == rows.documents[:, 1:][learned]).all()


def test_rows_are_full_and_every_dialogue_ends(rows: Rows) -> None:
    assert (rows.documents > 0).mean() > 0.9
    assert ((rows.tokens == PAD_ID) == (rows.documents == 0)).all()
    last = (rows.documents > 0) & (np.roll(rows.documents, -1, axis=1) != rows.documents)
    assert (rows.tokens[last] == END_ID).all()


def test_most_dialogues_begin_with_the_begin_token(rows: Rows) -> None:
    first = (rows.documents > 0) & (np.roll(rows.documents, 1, axis=1) != rows.documents)
    assert 0.9 < (rows.tokens[first] == BEGIN_ID).mean() < 1


def test_digits_are_single_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("374+588=", add_special_tokens=False).tokens == list("374+588=")


def test_any_text_survives_the_tokenizer(tokenizer: Tokenizer) -> None:
    text = "Grüße 42, 数字\t\n {}"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
