"""The FlashInfer path over a shadow of FlashInfer in torch: classes, plans, and agreement with gathered pages."""

from __future__ import annotations

import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tartlet_worker.attention.base import AttentionBatch, TableColumns
from tartlet_worker.attention.flashinfer import FlashInfer
from tartlet_worker.attention.shape import Shape, classify
from tartlet_worker.attention.torch_gather import TorchGather
from tartlet_worker.checkpoints.model_config import ModelConfig, RopeConfig
from tartlet_worker.pools import FAR, Pools, PoolSizes
from tests.worker import flashinfer_shadow
from tests.worker.mixed_batches import KINDS, PAGES, Batches

HEADS, KV_HEADS, DIM = 6, 2, 64


def config(*windows: int | None, heads: int = HEADS) -> ModelConfig:
    sizes: dict[str, Any] = {
        "dim": 64,
        "layers": len(windows),
        "ffn": 64,
        "vocab": 8,
        "norm_eps": 0,
        "max_position": 99,
    }
    return ModelConfig(
        "llama", heads=heads, kv_heads=KV_HEADS, head_dim=DIM, rope=RopeConfig(1e4), windows=windows, **sizes
    )


def pools_of(size: int) -> Pools:
    return Pools(PoolSizes(size, PAGES - 1, 4, 4, 0, 1), config(None), torch.float32, "cpu")


@settings(max_examples=25, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=7),
    size=st.sampled_from([1, 4, 16]),
    windows=st.sampled_from([(None,), (7,), (None, 5)]),
    heads=st.sampled_from([HEADS, 8]),
    seed=st.integers(0, 1 << 30),
)
def test_every_class_gives_what_gathering_gives(
    kinds: list[str], size: int, windows: tuple[int | None, ...], heads: int, seed: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        flashinfer_shadow.install(patch)
        pools = pools_of(size)
        batch = Batches(seed, size).draw(kinds, pools)
        gather = TorchGather(KV_HEADS, "cpu")
        mine = FlashInfer(config(*windows, heads=heads), "cpu", dtype=torch.float32, page_size=size, rest=gather)
        torch.manual_seed(seed)
        q = torch.randn(int(batch.query_indptr[-1]), heads, DIM)
        kv = torch.randn(2, PAGES + 1, KV_HEADS, size, DIM)
        prepared, want = mine.prepare(batch), gather.prepare(batch)
        for window in windows:
            got = mine.run(prepared, q, kv, window)
            assert (got - gather.run(want, q, kv, window)).abs().max() <= 1e-5


def test_every_class_is_met_and_named() -> None:
    expected = {
        "decode": Shape.DECODE, "append": Shape.APPEND, "shuffled": Shape.SEEN, "holes": Shape.SEEN,
        "equal": Shape.SEEN, "masked": Shape.MASKED,
    }  # fmt: skip
    met = set()
    for seed in range(30):
        batches = Batches(seed, 4)
        batch = batches.draw(list(expected), pools_of(4))
        shapes = classify(batch, windowed=True)
        for b, (kind, shape) in enumerate(expected.items()):
            found = Shape(shapes.shape[b])
            one = batch.query_indptr[b + 1] - batch.query_indptr[b] == 1
            plain = {Shape.DECODE, Shape.APPEND} if kind not in {"decode", "append", "masked"} else set()
            if kind == "masked" and not batch.allowed[b].any():
                plain = {Shape.REST}
            assert found == shape or found in plain or (one and found == Shape.DECODE), (kind, found)
            met.add((kind, found))
    assert set(expected.items()) <= met


def test_a_large_mask_and_a_command_that_sees_nothing_are_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Batches(3, 4).draw(["masked", "masked"], pools_of(4))
    monkeypatch.setattr("tartlet_worker.attention.shape.MASK_BYTES", 0)
    batch.allowed[1][:] = False
    assert classify(batch, windowed=False).shape.tolist() == [Shape.REST, Shape.REST]


def test_two_views_of_one_page_in_a_batch_do_not_share_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    flashinfer_shadow.install(monkeypatch)
    pages = np.array([[3, 7], [3, 8]], np.int32)
    positions = np.array([[5, FAR, 1, 2, 6, FAR, FAR, FAR], [5, 4, 1, 2, 6, FAR, FAR, FAR]], np.int32)
    batch = AttentionBatch(
        np.array([0, 1, 2]), np.array([6, 6], np.int32), pages, np.array([2, 2], np.int32), positions
    )
    gather = TorchGather(KV_HEADS, "cpu")
    mine = FlashInfer(config(3), "cpu", dtype=torch.float32, page_size=4, rest=gather)
    q, kv = torch.randn(2, HEADS, DIM), torch.randn(2, 9, KV_HEADS, 4, DIM)
    got = mine.run(mine.prepare(batch), q, kv, 3)
    assert (got - gather.run(gather.prepare(batch), q, kv, 3)).abs().max() <= 1e-5


def test_a_window_counts_from_the_token_where_the_last_column_is_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    flashinfer_shadow.install(monkeypatch)
    positions = np.array([[0, 1, 2, 3, 4, 5, FAR, FAR]], np.int32)
    batch = AttentionBatch(
        np.array([0, 1]), np.array([7], np.int32), np.array([[3, 7]], np.int32), np.array([2], np.int32), positions
    )
    assert classify(batch, windowed=True).shape.tolist() == [Shape.SEEN]
    assert classify(batch, windowed=False).shape.tolist() == [Shape.DECODE]
    gather = TorchGather(KV_HEADS, "cpu")
    mine = FlashInfer(config(4), "cpu", dtype=torch.float32, page_size=4, rest=gather)
    q, kv = torch.randn(1, HEADS, DIM), torch.randn(2, 9, KV_HEADS, 4, DIM)
    got = mine.run(mine.prepare(batch), q, kv, 4)
    assert (got - gather.run(gather.prepare(batch), q, kv, 4)).abs().max() <= 1e-5


def test_an_irregular_decode_step_sends_the_row_of_one_page(monkeypatch: pytest.MonkeyPatch) -> None:
    flashinfer_shadow.install(monkeypatch)
    mine = FlashInfer(config(None), "cpu", dtype=torch.float32, page_size=4, rest=TorchGather(KV_HEADS, "cpu"))
    pages = np.arange(30, dtype=np.int32)[None]
    positions = np.full((1, 120), FAR, np.int32)
    positions[0, :100] = np.arange(100)
    positions[0, 5] = FAR
    sent = []
    for position in range(100, 110):
        positions[0, position] = position
        batch = AttentionBatch(
            np.array([0, 1]), np.array([position], np.int32), pages, np.array([30], np.int32), positions.copy()
        )
        before = mine._seen.sent
        mine.prepare(batch)
        sent.append(mine._seen.sent - before)
    assert sent == [26, *([1] * 9)]


@pytest.mark.parametrize("tokens", [1, 5])
def test_classes_of_tables_cost_the_same_at_any_length(tokens: int) -> None:
    peaks = []
    pools = pools_of(16)
    for length in (128, 1 << 20):
        batch = AttentionBatch(
            np.array([0, tokens]), np.arange(length - tokens, length, dtype=np.int32), np.zeros((0, 1), np.int32),
            np.array([length // 16], np.int32), np.zeros((0, 16), np.int32),
            tables=TableColumns(np.array([0], np.int32), np.array([-1]), pools),
        )  # fmt: skip
        classify(batch, windowed=True)
        tracemalloc.start()
        assert classify(batch, windowed=True).length.tolist() == [length]
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[0] == peaks[1]


def test_bfloat16_goes_through_with_the_real_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    flashinfer_shadow.install(monkeypatch, anything=False)
    batch = Batches(8, 16).draw(KINDS, pools_of(16))
    gather = TorchGather(KV_HEADS, "cpu")
    mine = FlashInfer(config(None, 9), "cpu", dtype=torch.bfloat16, page_size=16, rest=gather)
    q = torch.randn(int(batch.query_indptr[-1]), HEADS, DIM, dtype=torch.bfloat16)
    kv = torch.randn(2, PAGES + 1, KV_HEADS, 16, DIM, dtype=torch.bfloat16)
    got = mine.run(mine.prepare(batch), q, kv, 9)
    want = gather.run(gather.prepare(batch), q.float(), kv.float(), 9)
    assert (got.float() - want).abs().max() <= 2e-2
    assert "flashinfer" in sys.modules
