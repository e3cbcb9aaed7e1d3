"""Philox noise, and that samples follow the exact filtered softmax."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tartlet_worker.kernels import available
from tartlet_worker.sampling import c_sampler, torch_sampler
from tartlet_worker.sampling.base import SampleParams, Sampler
from tartlet_worker.sampling.c_sampler import CSampler
from tartlet_worker.sampling.philox import philox4x32, uniform
from tartlet_worker.sampling.torch_sampler import TorchSampler, largest
from tests.worker.seeds import rng as fresh

RNG = fresh("sampling")
LOGITS = np.random.default_rng(3).normal(0, 2, 40).astype(np.float32)


@pytest.fixture(params=["torch", "c"])
def sampler(request: pytest.FixtureRequest) -> Sampler:
    if request.param == "torch":
        return TorchSampler()
    if not available():
        pytest.skip("the C kernels are not built")
    return CSampler()


def words(text: str) -> npt.NDArray[Any]:
    return np.array([[int(w, 16)] for w in text.split()], np.uint64)


@pytest.mark.parametrize(
    ("counter", "key", "want"),
    [
        ("0 0 0 0", "0 0", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_gives_the_known_answers_of_its_authors(counter: str, key: str, want: str) -> None:
    assert np.array_equal(philox4x32(words(counter), words(key)), words(want))


def test_the_abi_s_table_of_noise_is_what_is_drawn() -> None:
    text = (Path(__file__).parents[3] / "docs/abi.md").read_text(encoding="utf-8").partition("## Noise")[2]
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\d+) \| (0\.\d+) \|$", text, re.MULTILINE)
    assert len(rows) >= 3
    for seed, position, draw, want in rows:
        assert uniform(int(seed), int(position), int(draw))[0] == float(want)


def test_uniform_numbers_depend_on_each_of_their_keys() -> None:
    base = uniform(1, 2, 3)
    assert 0 <= base[0] < 1
    others = [uniform(2, 2, 3), uniform(1, 3, 3), uniform(1, 2, 4), uniform(1 + (1 << 40), 2, 3)]
    assert all(o[0] != base[0] for o in others)
    many = uniform(np.full(20000, 5), np.arange(20000), np.zeros(20000, int))
    assert abs(many.mean() - 0.5) < 0.01
    assert abs(np.histogram(many, 10, (0, 1))[0] - 2000).max() < 200


def params(n: int, **fields: Any) -> SampleParams:
    values = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 11, "draw": 0} | fields
    types = {"top_k": np.int32, "seed": np.uint64, "draw": np.uint32}
    columns = {k: np.full(n, v, types.get(k, np.float32)) for k, v in values.items()}
    return SampleParams(**columns, position=np.arange(n, dtype=np.int32))


def exact(temperature: float = 1.0, top_k: Any = 0, top_p: Any = 1.0, min_p: Any = 0.0) -> npt.NDArray[Any]:
    """The filtered distribution, filter by filter, in float64."""
    weight = np.exp((LOGITS.astype(np.float64) - LOGITS.max()) / temperature)
    order = np.argsort(-weight, kind="stable")
    keep = np.zeros(len(weight), bool)
    kept = order[: top_k or len(order)]
    before = np.cumsum(weight[kept]) - weight[kept]
    kept = kept[(before < top_p * weight[kept].sum()) | (np.arange(len(kept)) == 0)]
    keep[kept] = True
    keep &= weight >= min_p * weight.max()
    return np.asarray(np.where(keep, weight, 0) / weight[keep].sum())


FILTERS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.5},
    {"temperature": 3.0},
    {"top_k": 5},
    {"top_k": 1},
    {"top_p": 0.8},
    {"top_p": 0.0},
    {"min_p": 0.1},
    {"temperature": 1.7, "top_k": 12, "top_p": 0.9, "min_p": 0.05},
    {"top_k": 1000},
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_samples_follow_the_exact_filtered_softmax(sampler: Sampler, filters: dict[str, Any]) -> None:
    n = 20000
    rows = torch.from_numpy(LOGITS).expand(n, -1).contiguous()
    token, logprob = sampler.sample(rows, params(n, **filters))
    want = exact(**filters)
    counts = np.bincount(token, minlength=len(want))
    assert counts[want == 0].sum() == 0
    likely = want * n >= 5
    chi2 = ((counts - want * n)[likely] ** 2 / (want * n)[likely]).sum()
    freedom = max(1, likely.sum() - 1)
    assert chi2 < freedom + 5 * np.sqrt(2 * freedom)
    full = torch.log_softmax(torch.from_numpy(LOGITS), -1).numpy()
    assert np.allclose(logprob, full[token], atol=1e-5)


def test_rows_with_different_filters_do_not_touch_each_other(sampler: Sampler) -> None:
    rows = torch.from_numpy(RNG.normal(0, 2, (len(FILTERS) + 1, 3000)).astype(np.float32))
    n = len(rows)
    mixed = params(n)
    for i, filters in enumerate(FILTERS):
        for name, value in filters.items():
            getattr(mixed, name)[i] = value
    mixed.temperature[-1] = 0
    token, _ = sampler.sample(rows, mixed)
    for i in range(n):
        alone = SampleParams(*(getattr(mixed, f)[i : i + 1] for f in SampleParams.__dataclass_fields__))
        assert sampler.sample(rows[i : i + 1], alone)[0][0] == token[i]
    assert token[-1] == int(rows[-1].argmax())


def test_a_flat_distribution_with_a_nucleus_past_the_first_candidates_is_still_exact(sampler: Sampler) -> None:
    token, _ = sampler.sample(torch.zeros(1500, 3000), params(1500, top_p=0.9))
    assert token.max() < 2701
    assert len(np.unique(token)) > 1024  # 2,700 candidates are kept; the first 1,024 would give fewer


def test_noise_near_one_never_picks_a_dropped_token(sampler: Sampler) -> None:
    row = torch.tensor([[0.0, 5.0, 0.0, 0.0]])
    for seed in range(300):
        token, _ = sampler.sample(row, params(1, top_k=1, seed=seed))
        assert token[0] == 1


Row = list[float]
LOW, OFF = -9.0, float("-inf")


@pytest.mark.parametrize(
    ("row", "filters", "kept"),
    [
        ([0.0, 0.0, 0.0, 0.0], {}, [0, 1, 2, 3]),
        ([0.0, OFF, 0.0, OFF], {}, [0, 2]),
        ([OFF, 0.0, LOW, 0.0], {"min_p": 1.0}, [1, 3]),  # what is as probable as the most probable stays
        ([LOW, LOW, 2.0, LOW], {"min_p": 1.0, "temperature": 0.3}, [2]),
        ([0.0, 0.0, 0.0, 0.0], {"top_p": 0.5}, [0, 1]),  # the second sums to 0.5 exactly: the third is out
        ([0.0, 0.0, 0.0, 0.0], {"top_p": 0.75}, [0, 1, 2]),
        ([OFF, 0.0, OFF, 0.0], {"top_p": 0.5}, [1]),
        ([LOW, 0.0, 0.0, LOW], {"top_k": 2, "top_p": 0.5}, [1]),
        ([0.0, 0.0, 0.0, 0.0], {"top_k": 3, "min_p": 1.0}, [0, 1, 2]),
    ],
    ids=str,
)
def test_edges_of_filters_and_of_noise_are_as_stated(
    sampler: Sampler, row: Row, filters: dict[str, Any], kept: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept tokens are equally probable here: with noise of i / n exactly, the i-th of n is drawn."""
    noise = np.array([*(i / len(kept) for i in range(len(kept))), np.nextafter(1, 0)])
    for module in (torch_sampler, c_sampler):
        monkeypatch.setattr(module, "uniform", lambda *_: noise)
    token, _ = sampler.sample(torch.tensor([row] * len(noise)), params(len(noise), **filters))
    assert token.tolist() == [*kept, kept[-1]]


def test_the_top_of_a_distribution_is_that_of_the_full_softmax(sampler: Sampler) -> None:
    ids, probs = sampler.top(torch.from_numpy(LOGITS)[None], 7)
    full = torch.softmax(torch.from_numpy(LOGITS), -1).numpy()
    assert np.allclose(probs[0], full[ids[0]])
    assert np.allclose(probs[0], np.sort(full)[::-1][:7])


def test_equal_values_come_by_ascending_id_however_many_are_asked_for() -> None:
    rows = torch.tensor([[0.5, -1.0, 2.0, 0.5, -1.0, 2.0, 0.5, -0.0, 0.0]])
    for count in range(1, 10):
        values, ids = largest(rows, count)
        assert ids[0].tolist() == [2, 5, 0, 3, 6, 8, 7, 1, 4][:count]
        assert torch.equal(values, rows.gather(1, ids))


@pytest.mark.parametrize("vocab", [5, 40, 1000, 16384])
def test_both_samplers_find_the_same_top_and_draw_the_same_tokens(vocab: int) -> None:
    if not available():
        pytest.skip("the C kernels are not built")
    rows = torch.from_numpy(np.round(RNG.normal(0, 3, (64, vocab)), 1).astype(np.float32))  # many equal values
    mine, theirs = CSampler(), TorchSampler()
    for count in (1, 3, 5, 30, 256, vocab):
        if count <= vocab:
            ids, probs = mine.top(rows, count)
            assert np.array_equal(ids, theirs.top(rows, count)[0])
            assert np.allclose(probs, theirs.top(rows, count)[1])
    for filters in FILTERS:
        a, b = (s.sample(rows, params(64, **filters)) for s in (mine, theirs))
        # The last bit of an exponential may move a draw across an edge, very rarely.
        assert (a[0] != b[0]).sum() <= 1
        same = a[0] == b[0]
        assert np.allclose(a[1][same], b[1][same], atol=1e-5)


def test_logits_that_are_not_numbers_end_in_some_token_of_the_vocabulary(sampler: Sampler) -> None:
    rows = torch.full((3, 50), float("nan"))
    rows[1, 7] = 1.0
    rows[2] = float("-inf")
    for filters in ({"temperature": 0.0}, {}, {"top_k": 3}, {"top_p": 0.5}):
        token, _ = sampler.sample(rows, params(3, **filters))
        assert ((token >= 0) & (token < 50)).all()
