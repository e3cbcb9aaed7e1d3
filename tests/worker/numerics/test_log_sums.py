"""Sums of exponentials, of which log-probabilities are made: bits of a row that depend on no other row."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tartlet_worker.graphs.decoder import GraphDecoder
from tartlet_worker.sampling import triton_log_sums
from tartlet_worker.sampling.base import LogSums
from tartlet_worker.sampling.torch_sampler import TorchSampler, log_sums, log_sums_one_by_one
from tartlet_worker.torch_engine import sampler_choice
from tartlet_worker.torch_engine.loader import load_engine
from tests.worker.families import checkpoint
from tests.worker.graphs.recorder import GatheredStatic, Recorder

DEVICE = "cuda" if torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1" else "cpu"
INVARIANT = [triton_log_sums.log_sums, log_sums_one_by_one]


def bits(values: Tensor) -> list[int]:
    return values.cpu().view(torch.int32).tolist()


@pytest.mark.parametrize("sums", INVARIANT)
@pytest.mark.parametrize("vocab", [1, 320, 4096, 9001])
def test_bits_of_a_row_do_not_depend_on_the_others(sums: LogSums, vocab: int) -> None:
    rows = 4 * torch.randn(17, vocab, device=DEVICE)
    whole = sums(rows)
    torch.testing.assert_close(whole.double(), rows.double().logsumexp(-1), rtol=0, atol=3e-6)
    assert bits(whole) == [bit for row in rows.split(1) for bit in bits(sums(row))]
    assert bits(sums(rows[3:9])) == bits(whole[3:9])
    turned = torch.randperm(17)
    assert bits(sums(rows[turned])) == [bits(whole)[i] for i in turned.tolist()]


@pytest.mark.parametrize("sums", [*INVARIANT, log_sums])
def test_values_that_are_not_finite_give_what_torch_gives(sums: LogSums) -> None:
    rows = torch.zeros(6, 5000, device=DEVICE)
    rows[1] = float("-inf")
    rows[2, 4500] = float("inf")
    rows[3, 1:] = float("-inf")
    rows[4, 7] = float("nan")
    rows[5] = -3e38
    torch.testing.assert_close(sums(rows), rows.logsumexp(-1), equal_nan=True, rtol=0, atol=1e-5)
    assert not len(sums(rows[:0]))


@pytest.mark.parametrize(
    ("attention", "invariant", "sums"),
    [
        ("triton", True, triton_log_sums.log_sums),
        ("torch-chunked", True, log_sums_one_by_one),
        ("torch-gather", False, log_sums),
    ],
)
def test_an_engine_s_samplers_sum_as_its_settings_ask(attention: str, sums: LogSums, *, invariant: bool) -> None:
    how: dict[str, Any] = {"num_pages": 4, "kernels": "torch", "graphs": "off", "device": DEVICE}
    engine = load_engine(checkpoint("llama3-grouped"), attention=attention, batch_invariant=invariant, **how)
    assert sampler_choice.log_sums_for(engine.decoder, batch_invariant=invariant) is sums
    rows = 4 * torch.randn(3, engine.spec.vocab_size, device=DEVICE)
    ids = np.zeros((3, 1), np.int64)
    mine, wanted = engine._resources.sampler.logprobs(rows, ids), TorchSampler(sums).logprobs(rows, ids)
    assert mine.view(np.int32).tolist() == wanted.view(np.int32).tolist()


@pytest.mark.skipif(DEVICE != "cpu", reason="the recorded graph is on the CPU, where compiled kernels don't run")
def test_a_graph_s_log_probabilities_are_made_of_the_sums_that_it_is_given() -> None:
    engine = load_engine(checkpoint("llama3-grouped"), attention="torch-gather", num_pages=8, kernels="torch")
    asked: list[int] = []

    def told(logits: Tensor) -> Tensor:
        asked.append(len(logits))
        return triton_log_sums.log_sums(logits)

    decoder: Any = engine.decoder
    attention: Any = GatheredStatic(decoder.config.kv_heads, "cpu")
    GraphDecoder(decoder, attention, engine.pools, Recorder(strict=False), (1, 2), told).capture()
    assert set(asked) == {1, 2}
