"""When an engine captures graphs, what they hold, and how arrays travel."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tartlet_common.errors.registry import InvalidConfig
from tartlet_worker.checkpoints.model_config import read_config
from tartlet_worker.graphs import capture
from tartlet_worker.graphs.buckets import USUAL, bucket_of, parse, up_to
from tartlet_worker.page_tables import PageTables
from tartlet_worker.pools import Pools, PoolSizes
from tartlet_worker.torch_engine import graph_choice
from tartlet_worker.torch_engine.graph_choice import buckets, obstacle, with_graphs
from tartlet_worker.torch_engine.kv_budget import graph_bytes
from tartlet_worker.torch_engine.loader import load_engine
from tartlet_worker.transfers import Transfers
from tests.worker.driver import changes
from tests.worker.families import checkpoint
from tests.worker.seeds import rng as fresh


def test_every_batch_up_to_the_largest_has_a_bucket_little_larger() -> None:
    for rows in range(1, 257):
        bucket = bucket_of(rows, USUAL)
        assert bucket is not None
        assert 0 <= bucket - rows < max(16 if rows > 128 else 8, 1)
    assert bucket_of(257, USUAL) is None
    assert up_to(USUAL, 1000) == USUAL


@pytest.mark.parametrize(
    ("graphs", "device", "listed", "rows"),
    [
        ("auto", "cpu", "", ()),
        ("off", "cuda", "", ()),
        ("auto", "cuda:1", "4,1", (1, 4)),
        ("on", "cuda", "8,16,64", (8, 16)),
    ],
)
def test_graphs_are_captured_where_settings_and_device_allow(
    graphs: str, device: str, listed: str, rows: tuple[int, ...]
) -> None:
    assert buckets(graphs, device, listed, 10) == rows


@pytest.mark.parametrize(
    ("graphs", "device", "listed"), [("on", "cpu", ""), ("auto", "cuda", "0"), ("auto", "cuda", "x")]
)
def test_settings_that_can_not_be_met_are_refused(graphs: str, device: str, listed: str) -> None:
    with pytest.raises(InvalidConfig):
        buckets(graphs, device, listed, 10)
    with pytest.raises(ValueError, match="numbers of rows"):
        parse(",")


def test_a_decoder_that_can_not_be_captured_runs_as_it_is_or_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    engine = load_engine(checkpoint("llama3-grouped"), attention="torch-gather", num_pages=4)
    assert "torch-gather" in obstacle(engine.decoder)
    with caplog.at_level(logging.WARNING):
        kept = with_graphs(engine.decoder, engine.pools, (1, 2), must=False, progress=lambda _: None)
    assert kept is engine.decoder
    assert "without CUDA graphs" in caplog.text
    with pytest.raises(InvalidConfig):
        with_graphs(engine.decoder, engine.pools, (1, 2), must=True, progress=lambda _: None)


def test_a_capture_that_fails_leaves_the_decoder_as_it_is_or_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def __init__(self, _device: str) -> None:
            pass

        def graph(self, _body: Callable[[], None]) -> Callable[[], None]:
            raise self.error

        error: Exception = RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(graph_choice, "CudaCapture", Broken)
    engine = load_engine(checkpoint("llama3-grouped"), attention="triton", num_pages=4, kernels="torch")
    with caplog.at_level(logging.WARNING):
        kept = with_graphs(engine.decoder, engine.pools, (1, 2), must=False, progress=lambda _: None)
    assert kept is engine.decoder
    assert "not permitted" in caplog.text

    def fails(_device: str) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    with monkeypatch.context() as patch:
        patch.setattr(graph_choice, "give_back_memory", fails)
        with pytest.raises(InvalidConfig, match="use graphs=off"):
            with_graphs(engine.decoder, engine.pools, (1, 2), must=False, progress=lambda _: None)
    for error, expected in ((Broken.error, InvalidConfig), (torch.OutOfMemoryError("full"), torch.OutOfMemoryError)):
        monkeypatch.setattr(Broken, "error", error)
        with pytest.raises(expected):
            with_graphs(engine.decoder, engine.pools, (1, 2), must=True, progress=lambda _: None)


def test_a_spoilt_capture_ends_its_share_of_the_pool_and_one_that_ended_keeps_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch's allocator refuses to end what doesn't record, and a pool that is released twice ends the process."""
    recording, held = {(0, 7)}, {(0, 7): 2}

    def end(_device: int, pool: tuple[int, int]) -> None:
        if pool not in recording:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        recording.remove(pool)

    def release(_device: int, pool: tuple[int, int]) -> None:
        held[pool] -= 1

    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", release)
    monkeypatch.setattr(capture, "_failed", [])
    graph: Any = object()
    for _ in range(2):
        capture._end(graph, 1, (0, 7))
        assert not recording
        assert held == {(0, 7): 1}
        assert capture._failed == [graph]


def test_what_graphs_hold_grows_with_their_rows() -> None:
    config = read_config(checkpoint("llama3-grouped"))
    small, large = (graph_bytes(config, rows=rows, page_size=16, element_bytes=2) for rows in (1, 256))
    assert 100 << 20 < small < large < 1 << 30


def test_arrays_travel_together_and_keep_their_bits() -> None:
    transfers = Transfers("cpu")
    a, b = np.arange(5), np.array([[-1, 2], [3, 2**31 - 1]], np.int32)
    there = transfers.up([a, b])
    assert [t.tolist() for t in there] == [[0, 1, 2, 3, 4], [-1, 2, 3, 2**31 - 1]]
    target = torch.full((12,), 7, dtype=torch.int32)
    views = transfers.up_into(target, [a, b])
    assert target.tolist() == [0, 1, 2, 3, 4, -1, 2, 3, 2**31 - 1, 7, 7, 7]
    assert views[1].data_ptr() == target[5:].data_ptr()
    begun = transfers.down(views[0])
    views[0].zero_()  # the next step's answer
    assert begun.wait().tolist() == [0, 1, 2, 3, 4]


def test_changes_of_tables_reach_a_copy_on_a_device() -> None:
    tables = PageTables(page_size=4)
    tables.change(changes((0, 0, 0, [3, 4, 5]), (1, 0, 2, [8])))
    there = torch.from_numpy(tables.rows.copy())
    tables.take_changed()
    tables.change(changes((0, 0, 1, [9, 7]), (0, 0, 2, [6]), (5, 1, 2, [])))
    place, page = tables.take_changed()
    assert len(set(place.tolist())) == len(place)
    there.view(-1).index_copy_(0, torch.from_numpy(place).long(), torch.from_numpy(page))
    assert np.array_equal(there.numpy(), tables.rows)
    assert not len(tables.take_changed()[0])


def test_changes_that_nobody_takes_stay_one_span_a_table_and_are_not_lost() -> None:
    rng, tables = fresh("changes"), PageTables(page_size=4)
    tables.change(changes((5, 5, 0, [1] * 60)))  # the array has its size from here on
    tables.take_changed()
    there, count = tables.rows.copy(), 0
    for turn in range(1, 601):
        table, source = (int(n) for n in rng.integers(0, 6, 2))
        keep = int(rng.integers(0, int(tables.count[source]) + 1))
        added = rng.integers(0, 99, int(rng.integers(0, 4)))[: 64 - keep]
        tables.change(changes((table, source, keep, added.tolist())))
        count = max(count, len(tables.changed))
        if turn % 200 == 0:
            place, page = tables.take_changed()
            assert len(np.unique(place)) == len(place)
            there.reshape(-1)[place] = page
            for t in range(6):
                used = int(tables.count[t])
                assert np.array_equal(there[t, :used], tables.rows[t, :used])
    assert count == 6


def test_a_pool_has_room_for_what_nobody_asks_for() -> None:
    config = read_config(checkpoint("llama3-grouped"))
    pools = Pools(PoolSizes(4, 8, 16, 16, 4, 1), config, torch.float32, "cpu")
    assert pools.spare_embed == 16
    assert len(pools.embeds) == 17
