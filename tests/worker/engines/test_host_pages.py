"""Pages of suspended programs come back from host memory as they went, and programs in between see none of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tartlet_common.engine.step import EMPTY_I32, Step, Swaps
from tartlet_common.errors.registry import OutOfDeviceMemory
from tartlet_worker.host_pages import _runs
from tartlet_worker.torch_engine.engine import TorchEngine
from tartlet_worker.torch_engine.loader import load_engine
from tests.worker.driver import i32
from tests.worker.families import checkpoint

NAME = "llama3-grouped"
PAGES, HOST = 12, 6


@pytest.fixture(params=["float32", "bfloat16"])
def engine(request: pytest.FixtureRequest) -> TorchEngine:
    return load_engine(
        checkpoint(NAME), dtype=request.param, page_size=4, num_pages=PAGES, num_embeds=64, host_kv_bytes=1 << 30
    )


def test_the_spec_tells_the_budget_and_the_cost(engine: TorchEngine) -> None:
    assert engine.spec.host_pages == (1 << 30) // (engine.spec.kv_bytes_per_token * 4)
    assert engine.spec.host_page_ns > 0
    assert (engine.pools.position == -1).all(), "the measurement leaves nothing"
    assert not engine.pools.kv.any()


def test_pages_come_back_as_they_went_though_others_had_the_memory(engine: TorchEngine) -> None:
    pools, rng = engine.pools, np.random.default_rng(3)
    torch.manual_seed(3)
    pools.kv[:, :, :PAGES] = torch.randn_like(pools.kv[:, :, :PAGES])
    pools.position[:PAGES] = rng.integers(0, 99, (PAGES, 4))
    pools.hidden[:PAGES] = rng.random((PAGES, 4)) < 0.3
    pools.refresh(np.arange(PAGES))
    gone, host, back = i32([7, 2, 9, 4]), i32([5, 1, 2, 3]), i32([0, 9, 11, 2])
    before = [a[gone].copy() for a in (pools.position, pools.hidden, pools.seen_position)]
    kv = pools.kv[:, :, gone].clone()
    other = pools.kv[:, :, 5].clone()
    engine.step(Step(1, (), clear_pages=gone, swaps=Swaps(gone, host, EMPTY_I32, EMPTY_I32)))
    assert not pools.kv[:, :, gone].any()
    pools.kv[:, :, gone] = 1.0
    engine.step(Step(2, (), clear_pages=back, swaps=Swaps(EMPTY_I32, EMPTY_I32, host, back)))
    assert torch.equal(pools.kv[:, :, back], kv)
    for now, then in zip((pools.position, pools.hidden, pools.seen_position), before, strict=True):
        assert np.array_equal(now[back], then)
    assert torch.equal(pools.kv[:, :, 5], other)


def test_a_step_may_bring_out_and_back_the_same_page(engine: TorchEngine) -> None:
    pools = engine.pools
    pools.kv[:, :, 3] = 7.0
    pools.position[3] = [0, 1, 2, -1]
    engine.step(Step(1, (), clear_pages=i32([3, 6]), swaps=Swaps(i32([3]), i32([0]), i32([0]), i32([6]))))
    assert (pools.kv[:, :, 6] == 7.0).all()
    assert not pools.kv[:, :, 3].any()
    assert pools.position[6].tolist() == [0, 1, 2, -1]


def test_a_run_of_host_pages_is_one_copy() -> None:
    assert _runs(i32([4, 5, 6, 9, 2, 3])) == [(0, 3), (3, 4), (4, 6)]
    assert _runs(i32([8])) == [(0, 1)]


def test_more_host_memory_than_there_is_is_refused() -> None:
    with pytest.raises(OutOfDeviceMemory):
        load_engine(checkpoint(NAME), num_pages=4, host_kv_bytes=1 << 50)


def test_host_pages_are_counted_in_whole_pages() -> None:
    one = load_engine(checkpoint(NAME), dtype="float32", num_pages=4).spec.kv_bytes_per_token * 4
    spec = load_engine(checkpoint(NAME), dtype="float32", page_size=4, num_pages=4, host_kv_bytes=3 * one - 1).spec
    assert spec.host_pages == 2
