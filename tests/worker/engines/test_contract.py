"""`forward` as in docs/abi.md: random programs against a plain float64 model, on every attention implementation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from tartlet_common.engine.step import Batch, Step
from tartlet_worker.csr import Ints
from tartlet_worker.handlers import conflicts, output
from tartlet_worker.kernels import available
from tartlet_worker.models.base import ForwardPlan
from tartlet_worker.pools import Pools
from tartlet_worker.torch_engine.loader import load_engine
from tests.worker.driver import (
    Driver,
    copy_batch,
    dist_batch,
    embed_batch,
    forward_batch,
    i32,
    mask_batch,
    sample_batch,
)
from tests.worker.families import checkpoint
from tests.worker.plain import PlainModel
from tests.worker.seeds import rng as fresh

NAMES = ["llama3-grouped", "qwen2-window", "qwen3-norms"]
ATTENTION = ["torch-gather", "torch-chunked", "c", "flashinfer", "triton"]


def drive(name: str, attention: str, page_size: int, **options: Any) -> Driver:
    if attention == "c" and not available():
        pytest.skip("the C kernels are not built")
    sizes = {"num_pages": 40, "num_embeds": 256, "page_size": page_size}
    options = {"dtype": "float32", "graphs": "off", **sizes, **options}
    return Driver(load_engine(checkpoint(name), attention=attention, **options))


class RandomProgram:
    """A stream of calls on fourteen pages, given to an engine and to the plain model alike."""

    def __init__(self, name: str, attention: str, page_size: int, seed: int, **options: Any) -> None:
        self.rng = fresh(f"program {name} {page_size} {seed}")
        self.d, self.plain = drive(name, attention, page_size, **options), PlainModel(checkpoint(name), page_size)
        self.page_size, self.pages = page_size, self.rng.permutation(40)[:14]

    def some_pages(self, low: int = 0) -> list[int]:
        return list(self.rng.permutation(self.pages)[: self.rng.integers(low, 9)].tolist())

    def forward(self) -> None:
        rng, n = self.rng, int(self.rng.integers(1, 14))
        tokens, positions = rng.integers(0, 320, n), np.sort(rng.permutation(60)[:n])
        ikv, okv, offset, mask = self.some_pages(), [], 0, None
        if rng.random() < 0.7:
            need = -(-n // self.page_size) + 1
            okv = rng.permutation(self.pages)[:need].tolist()
            offset = int(rng.integers(0, len(okv) * self.page_size - n + 1))
            if rng.random() < 0.7:
                ikv = [p for p in ikv if p not in okv] + okv
        if ikv and rng.random() < 0.2:
            ikv.append(ikv[0])  # a page may be listed twice
        if rng.random() < 0.5:
            mask = rng.random((n, len(ikv) * self.page_size + n)) < 0.5
            mask[np.arange(n), len(ikv) * self.page_size + np.arange(n)] |= rng.random(n) < 0.8
        want = self.plain.forward(tokens, positions, ikv, okv, offset, mask)
        embeds = rng.permutation(256)[:n].tolist()
        self.d.embed(tokens, embeds, positions)
        self.d.forward(ikv=ikv, iemb=embeds, okv=okv, okv_offset=offset, oemb=embeds, mask=mask)
        got = self.d.logits(embeds)
        assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()

    def mask_page(self) -> None:
        page, bits = int(self.rng.choice(self.pages)), int(self.rng.integers(0, 1 << self.page_size))
        self.d.ok(mask_batch(page, bits))
        self.plain.mask_page(page, bits)

    def copy(self) -> None:
        src, dst = (int(p) for p in self.rng.choice(self.pages, 2, replace=False))
        size = int(self.rng.integers(0, self.page_size + 1))
        a, z = (int(x) for x in self.rng.integers(0, self.page_size - size + 1, 2))
        self.d.ok(copy_batch(src, dst, a, z, size))
        self.plain.copy(src, dst, a, z, size)


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize(("name", "page_size", "seed"), [(n, s, i) for i, n in enumerate(NAMES) for s in (1, 4, 16)])
def test_random_programs_agree_with_a_plain_float64_model(name: str, attention: str, page_size: int, seed: int) -> None:
    program = RandomProgram(name, attention, page_size, seed)
    for _ in range(8 if attention == "triton" else 40):  # Triton's interpreter is slow
        call = program.rng.choice(["forward", "forward", "forward", "mask_page", "copy"])
        getattr(program, call)()


@pytest.mark.parametrize("attention", ATTENTION)
def test_a_query_that_sees_nothing_takes_nothing_from_attention(attention: str) -> None:
    d, plain = drive("llama3-grouped", attention, 4), PlainModel(checkpoint("llama3-grouped"), 4)
    mask = np.zeros((3, 3), bool)
    mask[2] = True
    want = plain.forward([5, 6, 7], [0, 1, 2], [], (), 0, mask)
    d.embed([5, 6, 7], [0, 1, 2], [0, 1, 2])
    d.forward(iemb=[0, 1, 2], oemb=[0, 1, 2], mask=mask)
    assert np.abs(d.logits([0, 1, 2]) - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize("attention", ATTENTION)
def test_a_nan_reaches_only_commands_that_list_its_page(attention: str) -> None:
    d = drive("llama3-grouped", attention, 4)
    for page in (0, 1):
        d.prefill([1, 2, 3], [page])
    d.embed([7, 7, 8], [10, 11, 12], [3, 3, 4])
    mine = {"lane": 1, "ikv": [0], "iemb": [10], "oemb": [20]}
    theirs = {"lane": 2, "ikv": [1], "iemb": [11, 12], "oemb": [21, 22]}
    d.ok(forward_batch([theirs, mine]))
    want = d.logits([20])
    d.engine.pools.kv[:, :, 1] = float("nan")
    d.ok(forward_batch([theirs, mine]))
    assert np.isnan(d.logits([21, 22])).all()
    assert np.array_equal(d.logits([20]), want)
    d.forward(**mine)  # over the scratch page that held theirs
    assert np.allclose(d.logits([20]), want, atol=1e-5)


@pytest.mark.parametrize("attention", ATTENTION)
def test_a_page_is_clean_when_it_changes_hands(attention: str) -> None:
    d = drive("llama3-grouped", attention, 4)
    want = d.prefill([1, 2, 3], [0])
    d.prefill([1, 2, 3, 4], [1])
    d.ok(mask_batch(1, 0b101))
    d.engine.pools.kv[:, :, 1] = float("nan")
    d.step(clear_pages=np.array([1], np.int32))
    assert np.array_equal(d.prefill([1, 2, 3], [1]), want)


@pytest.mark.parametrize("attention", ATTENTION)
def test_a_batch_that_overwrites_what_it_reads_runs_in_order(attention: str) -> None:
    """Three commands: one reads slot 0, the next replaces it, the third reads what is there now."""
    d, plain = drive("llama3-grouped", attention, 4), PlainModel(checkpoint("llama3-grouped"), 4)
    plain.forward([9], [0], [2], [2], 0)
    d.embed([9], [0], [0])
    d.forward(ikv=[2], iemb=[0], okv=[2], oemb=[])
    want = [
        plain.forward([5], [3], [2]),
        plain.forward([6], [1], [2], [2], 0),
        plain.forward([7], [4], [2]),
    ]
    d.embed([5, 6, 7], [1, 2, 3], [3, 1, 4])
    d.ok(
        forward_batch(
            [
                {"ikv": [2], "iemb": [1], "oemb": [11]},
                {"ikv": [2], "iemb": [2], "okv": [2], "oemb": [12]},
                {"ikv": [2], "iemb": [3], "oemb": [13]},
            ]
        )
    )
    assert np.abs(d.logits([11, 12, 13]) - np.concatenate(want)).max() <= 1e-5 * np.abs(want).max()


def test_an_embed_written_and_read_in_one_batch_is_read_as_written() -> None:
    d = drive("llama3-grouped", "torch-gather", 4)
    d.embed([5, 6], [0, 1], [0, 1])
    chain = [{"iemb": [0], "oemb": [2]}, {"iemb": [2], "oemb": [3]}, {"iemb": [1], "oemb": [4]}]
    d.ok(forward_batch(chain))
    together = d.logits([2, 3, 4])
    d.embed([5, 6], [0, 1], [0, 1])
    for command in chain:
        d.forward(**command)
    assert np.allclose(d.logits([2, 3, 4]), together, atol=1e-5)


def test_a_long_command_that_stores_its_tokens_may_pass_the_batch_limit() -> None:
    small = drive("llama3-grouped", "torch-gather", 16, max_batch_tokens=16, max_batch_commands=4)
    large = drive("llama3-grouped", "torch-gather", 16)
    tokens = np.arange(100)
    want = large.prefill(tokens, range(7))
    assert np.allclose(small.prefill(tokens, range(7)), want, atol=1e-5)
    small.ok(embed_batch([{"embed": [0], "token": [1], "position": [0]}]))


class Passes:
    """Notes how many tokens each pass through the layers has."""

    def __init__(self, d: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tokens: list[int] = []
        run = d.engine.decoder.run

        def noted(plan: ForwardPlan, pools: Pools) -> None:
            self.tokens.append(len(plan.embed))
            run(plan, pools)

        monkeypatch.setattr(d.engine.decoder, "run", noted)


LIMIT = 16


@pytest.mark.parametrize(
    ("name", "attention"), [("llama3-grouped", "torch-gather"), ("qwen2-window", "torch-chunked"), ("qwen3-norms", "c")]
)
@pytest.mark.parametrize("how", ["ascending", "shuffled", "pairs"])
def test_a_long_command_runs_split_long_command_and_gives_what_it_gives_whole(
    name: str, attention: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, count = fresh("long command"), 60
    position = {"ascending": np.arange(count), "shuffled": rng.permutation(count), "pairs": np.arange(count) // 2}[how]
    tokens, aliased = rng.integers(0, 320, count), rng.permutation(count)  # an output takes another token's embed

    def outputs(max_batch_tokens: int) -> tuple[Driver, Passes, np.ndarray]:
        d = drive(name, attention, 16, max_batch_tokens=max_batch_tokens, batch_invariant=True)
        d.prefill(range(1, 17), [0])
        d.embed(tokens, range(100, 100 + count), position + 16)
        passes = Passes(d, monkeypatch)
        embeds = np.arange(100, 100 + count)
        d.forward(ikv=[0, 4], iemb=embeds, okv=[1, 2, 3, 4], oemb=100 + aliased)
        return d, passes, d.engine.pools.embeds[100 : 100 + count].float().cpu().numpy()

    (small, passes, got), (large, whole, want) = outputs(LIMIT), outputs(512)
    assert whole.tokens == [count]
    assert max(passes.tokens) <= LIMIT
    assert sum(passes.tokens) == count
    assert np.array_equal(got, want), np.abs(got - want).max()
    for d in (small, large):
        d.embed([7], [99], [count + 16])
        d.forward(ikv=[0, 1, 2, 3, 4], iemb=[99], oemb=[99])
    assert np.array_equal(small.logits([99]), large.logits([99])), "what it stored is the same"


def test_more_tokens_of_one_position_than_a_pass_takes_are_refused_and_masked_commands_run_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    d = drive("llama3-grouped", "torch-gather", 16, max_batch_tokens=LIMIT)
    embeds = list(range(LIMIT + 1))
    d.embed([1] * len(embeds), embeds, [5] * len(embeds))
    answer = d.run(forward_batch([{"iemb": embeds, "okv": [0, 1], "oemb": embeds}]))
    assert answer.status.all()
    assert f"more than {LIMIT} tokens of one position" in answer.detail[0]
    d.step(reset_lanes=np.array([1], np.uint32))
    passes = Passes(d, monkeypatch)
    mask = np.ones((len(embeds), len(embeds)), bool)  # each sees all, those after it too
    d.forward(iemb=embeds, okv=[0, 1], oemb=embeds, mask=mask)
    assert passes.tokens == [len(embeds)]


@pytest.mark.parametrize("attention", ATTENTION)
def test_a_command_that_stores_nothing_runs_whole(attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    count = LIMIT + 5  # scratch pages are a few more than a batch's tokens
    d = drive("llama3-grouped", attention, 16, max_batch_tokens=LIMIT, batch_invariant=True)
    d.embed(range(1, count + 1), range(count), range(count))
    passes = Passes(d, monkeypatch)
    d.forward(iemb=range(count), oemb=range(count))
    assert passes.tokens == [count]
    got = d.logits(range(count))
    want = drive("llama3-grouped", attention, 16, batch_invariant=True).prefill(range(1, count + 1), [0, 1])
    assert np.allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("attention", ["torch-gather", "c"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_whatever_takes_long_is_told_before_it_is_done(attention: str, dtype: str) -> None:
    d = drive("llama3-grouped", attention, 16, dtype=dtype)
    d.prefill(range(1, 17), [0])
    pools = d.engine.pools
    once = Step(7, (), clear_pages=i32([0]))
    steps: list[tuple[str, Step, Callable[[], Any]]] = [
        (
            "forward",
            _step(forward_batch([{"ikv": [0], "iemb": [3], "oemb": [100]}])),
            pools.embeds[100].tolist,
        ),
        ("sample", _step(sample_batch([{"embed": 0, "slot": 3}])), pools.slot_token.tolist),
        ("get_next_dist", _step(dist_batch([{"embed": [0], "top_k": 5}])), lambda: None),  # leaves nothing behind
        ("clear_pages", once, lambda: float(pools.kv[:, :, 0].float().abs().sum())),
    ]
    for name, step, state in steps:
        before = state()
        seen: list[Any] = []
        result = d.engine.step(step, partial(_note, seen, state))
        assert not any(answer.status.any() for answer in result.results)
        assert seen[0] == before, name
        assert name == "get_next_dist" or state() != before, name


def _step(batch: Batch) -> Step:
    return Step(7, (batch,))


def _note(seen: list[Any], state: Callable[[], Any]) -> None:
    seen.append(state())


@pytest.mark.parametrize("attention", ["torch-gather", "c"])
def test_logits_of_a_batch_are_computed_split_long_command(attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    d = drive("llama3-grouped", attention, 16, batch_invariant=True)
    d.prefill(range(1, 41), [0, 1, 2])
    rows: list[int] = []
    logits = d.engine.decoder.logits

    def noted(pools: Pools, embed: Ints) -> torch.Tensor:
        rows.append(len(embed))
        return logits(pools, embed)

    monkeypatch.setattr(d.engine.decoder, "logits", noted)
    dists = dist_batch([{"embed": list(range(i, i + 7)), "top_k": 3 + i} for i in range(0, 28, 7)])
    samples = sample_batch(
        [{"embed": i, "slot": i, "temperature": i % 3 / 2, "top_p": 0.9, "seed": i} for i in range(40)]
    )
    whole = d.ok(dists, samples).results
    assert rows == [28, 40]
    monkeypatch.setattr(output, "CHUNK_BYTES", 4 * d.engine.spec.vocab_size * 6)
    parts = d.ok(dists, samples).results
    assert rows[2:] == [6, 6, 6, 6, 4, 6, 6, 6, 6, 6, 6, 4]
    for name in ("dist_indptr", "dist_token", "dist_prob"):
        assert np.array_equal(getattr(parts[0], name), getattr(whole[0], name)), name
    for name in ("token", "logprob", "ended"):
        assert np.array_equal(getattr(parts[1], name), getattr(whole[1], name)), name


def test_one_long_page_list_does_not_make_all_lists_of_its_batch_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conflicts, "MAX_COLUMNS", 4096)
    d = drive("llama3-grouped", "torch-gather", 8)
    d.prefill(range(1, 31), [0, 1, 2, 3])
    short = [{"iemb": [1], "ikv": [0, 1, 2], "oemb": [40 + i]} for i in range(20)]
    long = {"iemb": [2], "ikv": [0, 1, 2, 3] * 20, "oemb": [70]}
    d.ok(forward_batch([*short, long]))
    alone = d.logits([40, 59, 70])
    shapes: list[tuple[int, ...]] = []
    run = d.engine.decoder.run

    def noted(plan: ForwardPlan, pools: Pools) -> None:
        shapes.append(plan.attention.pages.shape)
        run(plan, pools)

    monkeypatch.setattr(d.engine.decoder, "run", noted)
    d.ok(forward_batch([*short[:10], long, *short[10:]]))
    assert shapes == [(10, 4), (6, 81), (5, 4)]
    assert np.abs(d.logits([40, 59, 70]) - alone).max() <= 1e-5 * np.abs(alone).max()
