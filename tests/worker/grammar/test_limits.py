"""Limits of what an engine does for grammars: matchers, the time of compiling, and steps of one matcher."""

from __future__ import annotations

import os
import signal
import threading
from time import thread_time

import pytest

from inferlet._wire.options import Options
from tartlet_common.abi import GrammarKind
from tartlet_common.engine import sample_options
from tartlet_common.engine.sample_options import SampleOptions
from tartlet_common.errors.registry import EngineFailure, GrammarRefused, TartletError
from tartlet_worker.fake import model
from tartlet_worker.grammar import matchers, trial
from tartlet_worker.grammar.grammars import Grammars
from tartlet_worker.grammar.matchers import Matchers


def defined(grammars: Grammars, number: int, text: str, kind: GrammarKind = GrammarKind.REGEX) -> TartletError | None:
    told: list[TartletError | None] = []
    ended = threading.Event()

    def done(_: int, error: TartletError | None) -> None:
        told.append(error)
        ended.set()

    grammars.define(number, kind, text.encode(), done)
    assert ended.wait(60)
    return told[0]


def begun(number: int) -> SampleOptions:
    return sample_options.read(Options(follows=True).pack(model.VOCAB_SIZE, None, (number, ())))


def test_matchers_are_counted_by_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matchers, "MAX_MATCHERS", 2)
    grammars = Grammars(model.tokenizer_json(), model.VOCAB_SIZE, (model.EOS,))
    assert defined(grammars, 1, "a+") is None
    all_of = Matchers(grammars)
    masks, errors = all_of.prepare({slot: (slot, begun(1)) for slot in range(3)})
    assert (sorted(masks), sorted(errors)) == ([0, 1], [2])
    assert isinstance(errors[2], EngineFailure)
    all_of.advance([(0, ord("a")), (1, ord("a"))])
    assert all_of.prepare({0: (2, begun(1))})[1]
    assert not all_of.prepare({0: (1, begun(1))})[1]  # a slot's matcher can begin anew
    all_of.forget([0])
    assert not all_of.prepare({0: (2, begun(1))})[1]
    grammars.close()


def test_a_grammar_that_never_compiles_costs_the_worker_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that tries a text is ended at its time, and another one tries the next text."""
    grammars = Grammars(model.tokenizer_json(), model.VOCAB_SIZE, (model.EOS,))
    assert defined(grammars, 1, "a") is None
    child = grammars._trial._child  # the process that is to hang
    assert child is not None
    os.kill(child.pid, signal.SIGSTOP)
    monkeypatch.setattr(trial, "_WALL_S", 0.2)
    assert isinstance(defined(grammars, 2, "b"), GrammarRefused)
    assert grammars.start(2) is None
    monkeypatch.undo()
    assert defined(grammars, 3, "c") is None
    assert defined(grammars, 1, "a") is None
    grammars.close()


def test_a_text_that_takes_longer_with_each_token_is_refused_before_others_wait_for_it() -> None:
    """The tokens of an ambiguous grammar take time that grows with the text; those of plain ones don't."""
    grammars = Grammars(model.tokenizer_json(), model.VOCAB_SIZE, (model.EOS,))
    assert defined(grammars, 1, 'root ::= a\na ::= "x" | a a | a a a', GrammarKind.EBNF) is None
    assert defined(grammars, 2, "x+") is None
    all_of = Matchers(grammars)

    def sample(number: int, *tokens: int) -> SampleOptions:
        return sample_options.read(Options(follows=True).pack(model.VOCAB_SIZE, None, (number, tokens)))

    given = [ord("x")] * 2000
    begin_s = thread_time()
    masks, errors = all_of.prepare({0: (0, sample(1, *given)), 1: (1, sample(2, *given))})
    assert thread_time() - begin_s < 4 * (matchers.GRACE_S + 0.5)
    assert isinstance(errors[0], GrammarRefused)
    assert list(masks) == [1]
    assert not all_of.prepare({0: (0, sample(1))})[1]
    for _ in range(2000):
        all_of.advance([(0, ord("x"))])
        if errors := all_of.prepare({0: (0, sample(0))})[1]:
            break
    assert isinstance(errors[0], GrammarRefused)
    assert not all_of.prepare({0: (0, sample(1))})[1], "the slot's next text begins anew"
    grammars.close()
