"""Tokens that a grammar forces: each is the only one that its mask allows, and the text can go on behind them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from inferlet._wire.options import Options
from tartlet_common.abi import MAX_FORCED, SAMPLE_OPTIONS, GrammarKind, SampleFlag
from tartlet_common.engine import sample_options
from tartlet_common.engine.sample_options import SampleOptions
from tartlet_common.errors.registry import MalformedSubmission
from tartlet_worker.grammar.grammars import Grammars
from tartlet_worker.grammar.matchers import Advanced, Matchers
from tests.e2e.generated_grammars import Made, expressions, schemas
from tests.worker.grammar.test_masks import DEMO, define

VOCAB, STOP = 768, 2
MADE = [*schemas(40, 3), *expressions(15, 3)]


class Texts:
    """Texts of a grammar, one for each slot."""

    def __init__(self, grammars: Grammars, made: Made) -> None:
        grammars.forget(1)
        assert define(grammars, 1, made.kind, made.text) is None
        self.matchers = Matchers(grammars)
        self.going: set[int] = set()

    def allowed(self, slot: int) -> list[int]:
        """The tokens that may follow in the text of a slot."""
        number = 0 if slot in self.going else 1
        packed = Options(follows=True, forced=True).pack(VOCAB, None, (number, ()))
        options: SampleOptions = sample_options.read(packed)
        assert options.forced
        masks, errors = self.matchers.prepare({0: (slot, options)})
        assert not errors
        return np.flatnonzero(np.unpackbits(masks[0].view(np.uint8), bitorder="little", count=VOCAB)).tolist()

    def take(self, slot: int, token: int) -> Advanced:
        """Take a token that may follow."""
        self.going.add(slot)
        return self.matchers.advance([(slot, token)], (slot,))[0]


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars((DEMO / "tokenizer.json").read_bytes(), VOCAB, (STOP,))


def test_a_mask_allows_each_forced_token_alone(grammars: Grammars) -> None:
    rng, forced = random.Random(0), 0
    for made in MADE:
        texts = Texts(grammars, made)
        told: list[int] = []  # the forced tokens that are still to come
        for _ in range(60):
            allowed = texts.allowed(0)
            if told:
                assert allowed == [told.pop(0)]
            after = texts.take(0, rng.choice(allowed))
            if after.stopped:
                assert not told
                assert not after.forced
                break
            if told:
                assert list(after.forced[: len(told)]) == told, "those behind a forced token are the same"
            told = list(after.forced)
            forced += bool(told)
    assert forced > 100


def test_forced_tokens_need_a_grammar() -> None:
    packed = np.zeros(1, SAMPLE_OPTIONS)
    packed["flags"], packed["repetition"] = SampleFlag.FORCED, 1.0
    with pytest.raises(MalformedSubmission):
        sample_options.read(packed.tobytes())


def test_what_is_told_is_bounded_and_leaves_a_token_to_sample(grammars: Grammars) -> None:
    texts = Texts(grammars, Made(GrammarKind.REGEX, f"a{'xyz' * 200}", lambda _: True))
    after = texts.take(0, texts.allowed(0)[0])
    assert len(after.forced) == MAX_FORCED
    texts = Texts(grammars, Made(GrammarKind.REGEX, "aqzv", lambda _: True))
    after = texts.take(0, texts.allowed(0)[0])
    for token in after.forced:
        assert texts.allowed(0) == [token]
        assert not texts.take(0, token).stopped
    assert texts.take(0, texts.allowed(0)[0]).stopped
