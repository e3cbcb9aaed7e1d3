"""The memory that sampling takes beside the logits, which torch's profiler counts, and that it changes no token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tartlet_common.engine.sample_options import SampleOptions
from tartlet_worker.graphs import decoder as decoder_module
from tartlet_worker.history import Histories
from tartlet_worker.sampling import portions
from tartlet_worker.sampling.base import SampleParams
from tartlet_worker.sampling.portions import BYTES_A_DRAWN_LOGIT, draw_bytes, drawn_at_once
from tartlet_worker.sampling.torch_sampler import TorchSampler
from tartlet_worker.sampling.with_options import sample_with
from tartlet_worker.torch_engine.kv_budget import batch_bytes
from tartlet_worker.torch_engine.loader import load_engine
from tests.worker.families import checkpoint
from tests.worker.graphs.recorder import GatheredStatic, Recorder

ROWS, VOCAB = 24, 6000
LOGIT_BYTES = 4 * ROWS * VOCAB
SMALL = 1 << 16  # tokens, noise and columns of parameters


def peak_bytes(call: Callable[[], Any]) -> int:
    """Return the most bytes that torch holds on the CPU at once, beyond those from before the call."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        call()
    results: Any = profile.profiler
    events = [event for event in results.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    assert changes
    return int(np.cumsum(changes).max())


def params(**filters: float) -> SampleParams:
    fields: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | filters
    kinds = {"top_k": np.int32}
    columns: dict[str, Any] = {
        name: np.full(ROWS, value, kinds.get(name, np.float32)) for name, value in fields.items()
    }
    columns["temperature"][::5] = 0 if filters.get("mixed") else columns["temperature"][::5]
    columns.pop("mixed", None)
    counted: dict[str, Any] = {
        "seed": np.arange(ROWS, dtype=np.uint64), "draw": np.zeros(ROWS, np.uint32),
        "position": np.arange(ROWS, dtype=np.int32),
    }  # fmt: skip
    return SampleParams(**columns, **counted)


FILTERS = [
    {"top_p": 0.999},  # nearly all tokens: the whole vocabulary is sorted
    {"top_p": 0.999, "min_p": 1e-4, "top_k": 5000},
    {"top_p": 0.5},
    {"top_k": 40},
    {"min_p": 0.01},
    {"top_p": 0.999, "mixed": 1},
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_rows_are_drawn_in_portions_whose_memory_is_kept_for_them(
    filters: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    logits, sampler, asked = torch.randn(ROWS, VOCAB), TorchSampler(), params(**filters)
    whole: Any = sampler.sample(logits, asked)
    assert drawn_at_once(VOCAB) > ROWS
    assert peak_bytes(lambda: sampler.sample(logits, asked)) <= draw_bytes(ROWS, VOCAB) + SMALL
    monkeypatch.setattr(portions, "DRAW_BYTES", 5 * BYTES_A_DRAWN_LOGIT * VOCAB)
    assert drawn_at_once(VOCAB) == 5
    said: list[Any] = []
    taken = peak_bytes(lambda: said.append(sampler.sample(logits, asked)))
    assert taken <= max(draw_bytes(ROWS, VOCAB), LOGIT_BYTES) + SMALL  # the sum of all rows' exponentials comes later
    for mine, theirs in zip(said[0], whole, strict=True):
        assert np.array_equal(mine, theirs)


def test_it_would_take_several_times_as_much_in_one_portion(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the test above can fail."""
    logits, sampler, asked = torch.randn(ROWS, VOCAB), TorchSampler(), params(top_p=0.999)
    whole = peak_bytes(lambda: sampler.sample(logits, asked))
    monkeypatch.setattr(portions, "DRAW_BYTES", 5 * BYTES_A_DRAWN_LOGIT * VOCAB)
    assert whole > 1.5 * (draw_bytes(ROWS, VOCAB) + SMALL)


def test_the_top_of_distributions_is_found_in_portions_too(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, sampler = torch.randn(ROWS, VOCAB), TorchSampler()
    whole: Any = sampler.top(logits, 20)
    monkeypatch.setattr(portions, "DRAW_BYTES", 5 * BYTES_A_DRAWN_LOGIT * VOCAB)
    said: list[Any] = []
    assert peak_bytes(lambda: said.append(sampler.top(logits, 20))) <= max(draw_bytes(ROWS, VOCAB), LOGIT_BYTES) + SMALL
    for mine, theirs in zip(said[0], whole, strict=True):
        assert np.array_equal(mine, theirs)


def test_a_choice_that_no_graph_holds_takes_what_is_kept_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_module, "sampled_rows", lambda *_: ROWS - 1)
    engine = load_engine(
        checkpoint("llama3-grouped"), attention="torch-gather", num_pages=8, kernels="torch", dtype="bfloat16"
    )
    decoder: Any = engine.decoder
    attention: Any = GatheredStatic(decoder.config.kv_heads, "cpu")
    graphs = decoder_module.GraphDecoder(decoder, attention, engine.pools, Recorder(strict=False), (2, ROWS))
    graphs.capture()
    assert {rows for rows, _ in graphs._samplers} == {2}, "graphs would hold more than is kept for them"
    logits = torch.randn(ROWS, VOCAB).bfloat16()
    decoder.head = lambda hidden: logits[: len(hidden)].clone().float()
    config = replace(decoder.config, vocab=VOCAB)
    kept = batch_bytes(config, tokens=0, commands=1, element_bytes=2, chosen=ROWS)
    with torch.inference_mode():
        assert peak_bytes(lambda: graphs._choose(ROWS, drawn=True)) <= kept + SMALL
    assert kept > 2 * batch_bytes(config, tokens=0, commands=1, element_bytes=2)


def test_options_and_grammars_take_one_more_copy_of_the_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, sampler, asked = torch.randn(ROWS, VOCAB), TorchSampler(), params(top_p=0.999)
    words = np.full(-(-VOCAB // 32), -2, np.int32)  # the first token of each 32 is forbidden
    none = np.zeros(0, np.int32)
    nothing = SampleOptions(0, none, none, none.astype(np.float32), None, None, None, None)
    masks, options = dict.fromkeys(range(ROWS), words), dict.fromkeys(range(ROWS), nothing)
    slots = np.arange(ROWS, dtype=np.int32)

    def sample() -> Any:
        return sample_with(sampler, logits, asked, slots, options, Histories(), masks)

    whole = sample()
    assert (whole[0] % 32).all()
    monkeypatch.setattr(portions, "DRAW_BYTES", 5 * BYTES_A_DRAWN_LOGIT * VOCAB)
    said: list[Any] = []
    taken = peak_bytes(lambda: said.append(sample()))
    assert taken <= 2 * LOGIT_BYTES + draw_bytes(ROWS, VOCAB) + SMALL
    for mine, theirs in zip(said[0][:2], whole[:2], strict=True):
        assert np.array_equal(mine, theirs)
