"""Samples that follow grammars, on every engine: against a float64 reference, at failures, and beside other options."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer

from inferlet._wire.options import Options
from tartlet_common.abi import GrammarKind
from tartlet_common.engine.step import Status
from tartlet_common.errors.registry import GrammarRefused, InvalidArgument, TartletError
from tartlet_worker.fake import FakeEngine, FakeOptions, model
from tartlet_worker.grammar.grammars import Grammars
from tartlet_worker.sampling.philox import uniform
from tartlet_worker.torch_engine.loader import load_engine
from tests.worker.steps import embed, forward, fwd, run, sample, with_options

DEMO = Path(__file__).parents[3] / "models" / "demo"
ROWS = 8
TEXTS = [
    (GrammarKind.REGEX, "[a-z]{2,6}( [0-9]{1,3})?"),
    (
        GrammarKind.JSON_SCHEMA,
        '{"type":"object","properties":{"a":{"type":"boolean"}},"required":["a"],"additionalProperties":false}',
    ),
    (GrammarKind.EBNF, 'root ::= ("yes" | "no") " " [0-9]'),
    (GrammarKind.LARK, 'start: "x"+ "y"'),
]


def define(grammars: Grammars, number: int, kind: int, text: str) -> TartletError | None:
    """Compiles a grammar and waits for the outcome."""
    told: list[TartletError | None] = []
    done = threading.Event()

    def take(_: int, error: TartletError | None) -> None:
        told.append(error)
        done.set()

    grammars.define(number, kind, text.encode(), take)
    assert done.wait(90)
    return told[0]


class Subject:
    """An engine whose embeds hold outputs, their logits, and a matcher of its tokens for the reference."""

    def __init__(self, engine: Any, tokenizer: str) -> None:
        self.engine, self.vocab = engine, engine.spec.vocab_size
        self.tokenizer = LLTokenizer(tokenizer, n_vocab=self.vocab, eos_token=list(engine.spec.stop_tokens))
        embeds = list(range(ROWS))
        run(engine, embed((1, embeds, [65 + i for i in embeds], embeds)))
        run(engine, forward(fwd(1, [], embeds, oemb=embeds)))
        if engine.spec.family == "fake":
            self.logits = model.logits(engine.state.emb[:ROWS])
        else:
            self.logits = engine.decoder.logits(engine.pools, np.arange(ROWS)).double().numpy()
        self.numbers = {}
        for number, (kind, text) in enumerate(TEXTS, 1):
            assert define(engine.grammars, number, kind, text) is None
            self.numbers[text] = number

    def sampled(self, options: dict[int, bytes], **how: Any) -> Any:
        """Samples of all rows in one batch, row i into slot i, some with options."""
        batch = sample(*((i + 1, i, i) for i in range(ROWS)), **how)
        return run(self.engine, with_options(batch, options))[0]

    def reset(self) -> None:
        """Lets lanes that failed go on."""
        run(self.engine, reset_lanes=np.arange(1, ROWS + 1, dtype=np.uint32))

    def text(self, tokens: list[int]) -> str:
        return self.tokenizer.decode_str(tokens)


@pytest.fixture
def subject(loaded: Subject) -> Subject:
    """The engine without poisoned lanes and with empty slots."""
    lanes = np.arange(1, 30, dtype=np.uint32)
    run(loaded.engine, clear_slots=np.arange(48, dtype=np.int32), reset_lanes=lanes)
    return loaded


@pytest.fixture(scope="module", params=["fake", "torch", "c"])
def loaded(request: pytest.FixtureRequest) -> Subject:
    if request.param == "fake":
        engine: Any = FakeEngine(FakeOptions(num_pages=8, num_slots=64, num_embeds=256))
        return Subject(engine, model.tokenizer_json().decode())
    kernels = "torch" if request.param == "torch" else "auto"
    engine = load_engine(DEMO, kernels=kernels, num_pages=8, num_embeds=256)
    return Subject(engine, (DEMO / "tokenizer.json").read_text())


def sources() -> list[str]:
    defaults: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    lark = 'start: ("yes" | "no") " " /[0-9]/'
    return [
        LLMatcher.grammar_from_regex(TEXTS[0][1]),
        LLMatcher.grammar_from_json_schema(TEXTS[1][1], defaults=defaults),
        LLMatcher.grammar_from_lark(lark),
        LLMatcher.grammar_from_lark(TEXTS[3][1]),
    ]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_tokens_equal_the_reference_token_by_token(subject: Subject, temperature: float) -> None:
    """Every text of a grammar, with bias and allowed tokens beside, is what a matcher and float64 choose."""
    options = [Options(follows=True) for _ in range(ROWS)]
    options[1] = Options(follows=True, logit_bias=dict.fromkeys(range(40, 60), 3.0), presence_penalty=0.5)
    matchers = [LLMatcher(subject.tokenizer, sources()[i % 4]) for i in range(ROWS)]
    prompts: list[list[int]] = [[] for _ in range(ROWS)]
    live = set(range(ROWS))
    for turn in range(24):
        packed = {}
        for i in live:
            first = (subject.numbers[TEXTS[i % 4][1]], ()) if turn == 0 else None
            history = ((), ()) if turn == 0 and options[i].penalises else None
            packed[i] = options[i].pack(subject.vocab, history, first)
        answer = subject.sampled(packed, temperature=temperature, seed=turn)
        assert not answer.status.any(), answer.detail
        for i in list(live):
            token = int(answer.token[i])
            row = subject.logits[i].copy()
            for t, value in (options[i].logit_bias or {}).items():
                row[t] += value
            if options[i].penalises:
                row[list(set(prompts[i]))] -= 0.5
            bits = np.frombuffer(matchers[i].compute_bitmask(), np.uint8)
            row[np.unpackbits(bits, bitorder="little")[: subject.vocab] == 0] = -np.inf
            assert np.isfinite(row[token])
            _assert_chosen(subject, row, token, temperature, uniform(turn, i, 0)[0])
            assert matchers[i].consume_token(token)
            prompts[i].append(token)
            assert bool(answer.ended[i]) == matchers[i].is_stopped()
            if answer.ended[i]:
                live.discard(i)
        if not live:
            return
    assert live <= {3, 7}, "only texts without a bound may go on"


def _assert_chosen(subject: Subject, row: Any, token: int, temperature: float, u: float) -> None:
    """The token is the reference's, or as good as it within rounding."""
    if temperature == 0:
        assert row[token] >= row.max() - 1e-3
        return
    order = np.argsort(-row, kind="stable") if subject.engine.spec.family == "fake" else np.arange(len(row))
    weights = np.exp((row - row.max()) / temperature)[order]
    cdf, at = np.cumsum(weights) / weights.sum(), int(np.flatnonzero(order == token)[0])
    assert cdf[at] - weights[at] / weights.sum() - 1e-3 <= u <= cdf[at] + 1e-3


def test_a_matcher_is_a_function_of_its_grammar_and_tokens(subject: Subject) -> None:
    """A fork, a rollback and a matcher that another engine begins anew choose what the first one chooses."""
    follow, number = Options(follows=True), subject.numbers[TEXTS[0][1]]
    tokens: list[int] = []
    for turn in range(3):
        packed = follow.pack(subject.vocab, None, (number, ()) if turn == 0 else None)
        tokens.append(int(subject.sampled({0: packed}, seed=turn, temperature=1.0).token[0]))
    goes_on = follow.pack(subject.vocab)
    begun = follow.pack(subject.vocab, None, (number, tokens))
    both = subject.sampled({0: begun, 1: goes_on}, seed=3, temperature=1.0)
    assert both.status[1] == Status.FAILED  # slot 1 has no matcher
    assert TartletError.from_wire(int(both.error[1]), both.detail[0].encode()).__class__ is InvalidArgument
    subject.reset()
    first = subject.sampled({0: begun}, seed=3, temperature=1.0)
    assert first.token[0] == both.token[0]
    rolled_back = follow.pack(subject.vocab, None, (number, tokens[:2]))
    again = subject.sampled({0: rolled_back}, seed=2, temperature=1.0)
    assert again.token[0] == tokens[2]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ((99, ()), InvalidArgument),  # no such grammar
        ((0, (1, 2)), InvalidArgument),  # no matcher that could go on
        ((1, "!!"), GrammarRefused),  # the text can't begin so
        ((1, "abcdef 123"), GrammarRefused),  # nothing can follow
    ],
)
def test_a_wrong_use_fails_its_command_alone(subject: Subject, given: Any, error: type[TartletError]) -> None:
    number, tokens = given
    listed = subject.tokenizer.tokenize_str(tokens) if isinstance(tokens, str) else tokens
    good = Options(follows=True).pack(subject.vocab, None, (1, ()))
    bad = Options(follows=True).pack(subject.vocab, None, (number, listed))
    answer = subject.sampled({2: good, 3: bad})
    assert answer.status.tolist() == [Status.FAILED if i == 3 else Status.OK for i in range(ROWS)]
    assert isinstance(TartletError.from_wire(int(answer.error[3]), answer.detail[0].encode()), error)


def test_grammar_and_allowed_tokens_together_may_leave_none(subject: Subject) -> None:
    digits = [t for t in range(subject.vocab) if subject.text([t]).isdigit()]
    packed = Options(follows=True, allowed=digits).pack(subject.vocab, None, (1, ()))  # begins with letters
    answer = subject.sampled({0: packed})
    assert answer.status[0] == Status.FAILED


def test_a_failed_sample_leaves_the_matcher_as_it_is(subject: Subject) -> None:
    """Neither its own failure nor that of a command before it in its lane moves the matcher on."""
    follow, number = Options(follows=True), subject.numbers[TEXTS[0][1]]
    first = int(subject.sampled({0: follow.pack(subject.vocab, None, (number, ()))}, seed=1).token[0])
    goes_on = follow.pack(subject.vocab)
    word = subject.tokenizer.tokenize_str("a")
    wrong = subject.tokenizer.tokenize_str("!")
    for bad in ((0, [*word, *wrong]), (99, ()), (number, wrong)):
        assert subject.sampled({0: follow.pack(subject.vocab, None, bad)}).status[0] == Status.FAILED
        subject.reset()
    in_one_lane = sample((7, 0, 40), (7, 0, 0))
    options = {0: goes_on, 1: follow.pack(subject.vocab, None, (0, word))}  # slot 40 has no matcher
    refused = run(subject.engine, with_options(in_one_lane, options))[0]
    assert refused.status.tolist() == [Status.FAILED, Status.REFUSED]
    subject.reset()
    after = subject.sampled({0: goes_on}, seed=2, temperature=1.0)
    fresh = subject.sampled({0: follow.pack(subject.vocab, None, (number, [first]))}, seed=2, temperature=1.0)
    assert after.status[0] == fresh.status[0] == Status.OK
    assert after.token[0] == fresh.token[0]


def test_a_skipped_sample_leaves_the_matcher_as_it_is(subject: Subject) -> None:
    follow = Options(follows=True)
    subject.sampled({0: follow.pack(subject.vocab, None, (1, ()))}, seed=1, temperature=1.0)
    stop_all = sample((20, 0, 40), stop=list(range(subject.vocab)))
    run(subject.engine, stop_all)  # slot 40 has ended: what it feeds is skipped
    run(subject.engine, embed((20, [9], [40], [9]), slots=True))
    run(subject.engine, forward(fwd(20, [], [9], oemb=[10])))
    skipped = run(subject.engine, with_options(sample((20, 10, 0)), {0: follow.pack(subject.vocab)}))[0]
    assert skipped.status[0] == Status.SKIPPED
    assert subject.sampled({0: follow.pack(subject.vocab)}, seed=2).status[0] == Status.OK


def test_forced_tokens_stand_behind_the_log_probabilities_that_are_asked_for(subject: Subject) -> None:
    matcher = LLMatcher(subject.tokenizer, sources()[1])
    given = (subject.numbers[TEXTS[1][1]], ())
    plain, asking = (
        Options(follows=True, logprobs=2, forced=forced).pack(subject.vocab, None, given) for forced in (False, True)
    )
    answer = subject.sampled({0: plain, 1: asking})
    assert not answer.status.any(), answer.detail
    start, middle, end = answer.dist_indptr.tolist()
    assert middle - start == 2 < end - middle
    assert np.isfinite(answer.dist_prob[: middle + 2]).all()
    assert np.isposinf(answer.dist_prob[middle + 2 :]).all()
    assert matcher.consume_token(int(answer.token[1]))
    for token in answer.dist_token[middle + 2 :].tolist():
        allowed = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        assert np.flatnonzero(allowed).tolist() == [token]
        assert matcher.consume_token(token)
    assert not matcher.is_stopped()
