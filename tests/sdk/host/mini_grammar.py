"""Grammars of `MiniHost`: those of the worker, on the mini model's tokens."""

from __future__ import annotations

import threading
from functools import lru_cache

import numpy as np

from tartlet_common.abi import Op
from tartlet_common.engine.sample_options import SampleOptions
from tartlet_common.errors.registry import TartletError
from tartlet_worker.fake.model import tokenizer_json  # one token for each byte, as here
from tartlet_worker.grammar.grammars import Grammars
from tartlet_worker.grammar.matchers import Advanced, Matchers
from tests.sdk.host import mini_model as model


@lru_cache(maxsize=1)
def _grammars() -> Grammars:
    return Grammars(tokenizer_json(), model.VOCAB, (model.EOS,))  # with one process for all hosts of a test run


class MiniGrammars:
    """Compiles grammars while the program waits."""

    def __init__(self) -> None:
        self._grammars = _grammars()
        self._matchers = Matchers(self._grammars)

    def run(self, op: Op, number: int, kind: int, text: bytes) -> TartletError | None:
        """Define or free a grammar; returns why it can't be used."""
        if op is Op.DEALLOC_GRAMMAR:
            self._grammars.forget(number)
            return None
        told: list[TartletError | None] = []
        ended = threading.Event()

        def done(_: int, error: TartletError | None) -> None:
            told.append(error)
            ended.set()

        self._grammars.define(number, kind, text, done)
        assert ended.wait(60)
        return told[0]

    def allowed(self, slot: int, options: SampleOptions) -> np.ndarray:
        """[V]: the tokens that continue the slot's text."""
        masks, errors = self._matchers.prepare({0: (slot, options)})
        if errors:
            raise errors[0]
        return np.unpackbits(masks[0].view(np.uint8), bitorder="little", count=model.VOCAB)

    def take(self, slot: int, token: int, options: SampleOptions) -> Advanced:
        """Take a token; returns what follows it."""
        return self._matchers.advance([(slot, token)], (slot,) if options.forced else ())[0]
