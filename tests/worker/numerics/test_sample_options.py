"""Bias, allowed tokens, penalties and log-probabilities against a float64 reference, on every engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from inferlet._wire.options import Options
from tartlet_common.engine.step import Status
from tartlet_worker import history
from tartlet_worker.fake import FakeEngine, FakeOptions, model
from tartlet_worker.kernels import available
from tartlet_worker.sampling.philox import uniform
from tartlet_worker.torch_engine.loader import load_engine
from tests.worker.families import checkpoint
from tests.worker.numerics.test_numerics import INTERPRETED, SHADOW
from tests.worker.seeds import rng as fresh
from tests.worker.steps import embed, forward, fwd, run, sample, with_options

F64 = npt.NDArray[np.float64]
RNG = fresh("sample options")
ROWS = 24


@dataclass
class Subject:
    """An engine whose embeds 0 to ROWS - 1 hold outputs, and their logits."""

    engine: Any
    logits: F64  # [ROWS, V]

    @property
    def vocab(self) -> int:
        return int(self.logits.shape[1])


def fake() -> tuple[Any, Callable[[], F64]]:
    engine = FakeEngine(FakeOptions(num_pages=8, num_slots=64, num_embeds=256))
    return engine, lambda: model.logits(engine.state.emb[:ROWS])


def torch(attention: str) -> tuple[Any, Callable[[], F64]]:
    if attention == "c" and not available():
        pytest.skip("the C kernels are not built")
    kernels = "torch" if attention in {"flashinfer", "triton"} else "auto"  # GPUs sample in torch
    engine = load_engine(
        checkpoint("llama3-grouped"), attention=attention, kernels=kernels, dtype="float32", num_pages=8, num_embeds=256
    )
    return engine, lambda: engine.decoder.logits(engine.pools, np.arange(ROWS)).double().numpy()


@pytest.fixture(
    scope="module",
    params=[
        "fake", "torch-gather", "c", pytest.param("flashinfer", marks=SHADOW),
        pytest.param("triton", marks=INTERPRETED),
    ],
)  # fmt: skip
def subject(request: pytest.FixtureRequest) -> Subject:
    engine, logits = fake() if request.param == "fake" else torch(request.param)
    embeds = list(range(ROWS))
    tokens = RNG.integers(0, 250, ROWS).tolist()
    run(engine, embed((1, embeds, tokens, embeds)))
    run(engine, forward(fwd(1, [], embeds, oemb=embeds)))
    return Subject(engine, logits())


def changed(row: F64, options: Options, prompt: set[int], output: list[int]) -> F64:
    """The reference: docs/abi.md in float64."""
    out, counts = row.copy(), Counter(output)
    r, f, p = (np.float32(x) for x in (options.repetition_penalty, options.frequency_penalty, options.presence_penalty))
    for token in prompt | set(counts):
        out[token] = out[token] / r if out[token] > 0 else out[token] * r
    for token, times in counts.items():
        out[token] -= times * f + p
    for token, value in (options.logit_bias or {}).items():
        out[token] = -np.inf if value <= -100 else out[token] + np.float32(value)
    if options.allowed is not None:
        others = np.setdiff1d(np.arange(len(row)), list(options.allowed))
        out[others] = -np.inf
    return out


def log_softmax(row: F64) -> F64:
    return np.asarray(row - row.max() - np.log(np.exp(row - row.max()).sum()))


def some(vocab: int, most: int) -> list[int]:
    return list(RNG.permutation(vocab)[: RNG.integers(1, most)].tolist())


def options_of(vocab: int) -> Options:
    """Random options, each of them in half of the cases."""
    on = RNG.random(6) < 0.5
    bias = {t: float(RNG.choice([-100.0, RNG.normal(0, 4)])) for t in some(vocab, 40)}
    allowed = some(vocab, vocab if RNG.random() < 0.5 else 8)
    if on[0] and on[1] and all(bias.get(t, 0) <= -100 for t in allowed):
        bias[allowed[0]] = 1.0
    return Options(
        logit_bias=bias if on[0] else None,
        allowed=allowed if on[1] else None,
        logprobs=int(RNG.integers(0, 21)),
        logprobs_of=some(vocab, 5) if on[2] else (),
        repetition_penalty=float(RNG.uniform(0.6, 2)) if on[3] else 1.0,
        frequency_penalty=float(RNG.uniform(-2, 2)) if on[4] else 0.0,
        presence_penalty=float(RNG.uniform(-2, 2)) if on[5] else 0.0,
    )


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_tokens_and_log_probabilities_equal_the_reference(subject: Subject, temperature: float) -> None:
    vocab, rows = subject.vocab, list(range(ROWS))
    options = [options_of(vocab) if i % 6 else Options() for i in rows]  # some commands bring none
    prompts = [set(some(vocab, 60)) for _ in rows]
    outputs: list[list[int]] = [some(vocab, 6) * 2 for _ in rows]
    for turn in range(6):
        packed = {
            i: o.pack(vocab, (prompts[i], outputs[i]) if turn == 0 and o.penalises else None)
            for i, o in enumerate(options)
        }
        order = RNG.permutation(ROWS).tolist()
        batch = sample(*((i + 1, i, i) for i in order), temperature=temperature, seed=turn)
        (answer,) = run(subject.engine, with_options(batch, {at: packed[i] for at, i in enumerate(order) if packed[i]}))
        assert not answer.status.any(), answer.detail
        told = iter(np.split(np.arange(len(answer.dist_token)), answer.dist_indptr[1:-1]))
        for at, i in enumerate(order):
            row, token = subject.logits[i], int(answer.token[at])
            prompt, output = (prompts[i], outputs[i]) if options[i].penalises else (set(), [])
            noise = uniform(turn, i, 0)[0]
            assert_chosen(subject, changed(row, options[i], prompt, output), token, temperature, noise)
            outputs[i].append(token)
            logp = log_softmax(row)
            assert answer.logprob[at] == pytest.approx(logp[token], abs=2e-5)
            if packed[i]:
                assert_told(answer, next(told), logp, options[i])


def assert_chosen(subject: Subject, row: F64, token: int, temperature: float, u: float) -> None:
    """The token is the reference's, or as good as it within rounding of float32."""
    assert np.isfinite(row[token])
    if temperature == 0:
        assert row[token] >= row.max() - 1e-4
        return
    by_weight = subject.engine.spec.family == "fake"  # it adds up the largest weights first
    order = np.argsort(-row, kind="stable") if by_weight else np.arange(len(row))
    weights = np.exp((row - row.max()) / temperature)[order]
    cdf, at = np.cumsum(weights) / weights.sum(), int(np.flatnonzero(order == token)[0])
    assert cdf[at] - weights[at] / weights.sum() - 1e-4 <= u <= cdf[at] + 1e-4


def assert_told(answer: Any, at: npt.NDArray[Any], logp: F64, options: Options) -> None:
    ids, values = answer.dist_token[at].tolist(), answer.dist_prob[at]
    assert len(ids) == options.logprobs + len(options.logprobs_of)
    assert ids[options.logprobs :] == list(options.logprobs_of)
    assert np.allclose(values, logp[ids], atol=2e-5)
    if options.logprobs:
        best = np.sort(logp)[::-1][: options.logprobs]
        assert np.allclose(values[: options.logprobs], best, atol=2e-5)
        assert len(set(ids[: options.logprobs])) == options.logprobs


def test_only_samples_that_run_count(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """A skipped, a refused and a failed sample leave the history of their slot as it was."""
    engine, vocab = subject.engine, subject.vocab
    best = int(subject.logits[0].argmax())
    strong = Options(presence_penalty=1000.0)
    fresh_history = strong.pack(vocab, ((), ()))

    def first(lane: int, embed_id: int, packed: bytes) -> Any:
        return run(engine, with_options(sample((lane, embed_id, 40)), {0: packed}))[0]

    run(engine, sample((50, 0, 41), stop=[best]))  # slot 41 ends
    run(engine, embed((50, [100], [41], [3]), slots=True))  # and embed 100 with it
    run(engine, forward(fwd(50, [], [100], oemb=[101])))
    with monkeypatch.context() as full:
        full.setattr(history, "MAX_TOKENS", 0)
        assert first(51, 0, strong.pack(vocab, ([best], [best]))).status[0] == Status.FAILED
    assert first(51, 0, fresh_history).status[0] == Status.REFUSED
    run(engine, reset_lanes=[51])
    assert first(52, 101, fresh_history).status[0] == Status.SKIPPED
    assert int(first(53, 0, strong.pack(vocab)).token[0]) == best
    assert int(first(53, 0, strong.pack(vocab)).token[0]) != best  # now the token counts
    run(engine, clear_slots=[40])
    assert int(first(53, 0, strong.pack(vocab)).token[0]) == best  # a slot that changed hands has no history
    run(engine, clear_slots=[40, 41], clear_embeds=[100, 101])


def test_histories_are_bounded(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_TOKENS", 64)
    vocab = subject.vocab
    packed = Options(frequency_penalty=1.0).pack(vocab, (range(50), range(50)))
    (answer,) = run(subject.engine, with_options(sample((60, 0, 42), (61, 1, 43)), {0: packed}))
    assert answer.status.tolist() == [Status.FAILED, Status.OK]
    run(subject.engine, reset_lanes=[60])
