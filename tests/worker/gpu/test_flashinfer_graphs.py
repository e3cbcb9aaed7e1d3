"""FlashInfer's shadow in graphs, with a recorder in place of capture."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from tartlet_common.errors.registry import OutOfDeviceMemory
from tartlet_worker.attention.flashinfer import PLAN_BYTES, FlashInfer
from tartlet_worker.attention.flashinfer_static import FlashInferStatic
from tartlet_worker.checkpoints.model_config import read_config
from tartlet_worker.pools import pool_bytes
from tartlet_worker.torch_engine import loader, memory
from tartlet_worker.torch_engine.engine import TorchEngine
from tartlet_worker.transfers import Transfers
from tests.worker import flashinfer_shadow
from tests.worker.driver import Driver
from tests.worker.families import checkpoint
from tests.worker.graphs.recorder import Recorder, with_recorded_graphs
from tests.worker.graphs.test_graph_decoder import Programs, plain_driver

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="FlashInfer itself may be there")


def captured(name: str, buckets: tuple[int, ...]) -> tuple[TorchEngine, Recorder]:
    engine = plain_driver(name, attention="flashinfer").engine
    decoder: Any = engine.decoder
    assert isinstance(decoder.attention, FlashInfer)
    return with_recorded_graphs(engine, buckets, decoder.attention)


@pytest.mark.parametrize(("name", "lists"), [("qwen2-window", False), ("llama3-grouped", True)])
def test_graphs_over_flashinfer_give_what_gathering_gives(name: str, *, lists: bool) -> None:
    engine, recorder = captured(name, (1, 2, 4))
    programs = Programs([Driver(engine), plain_driver(name)], 3, f"graphs {name}", lists=lists)
    for t, tokens in enumerate((5, 9, 4)):
        programs.prefill(t, tokens)
    for chosen in ([0, 1, 2], [1], [0, 1], [2, 0, 1]):
        programs.decode(chosen)
    programs.compare_pools()
    assert sum(count > 0 for count in recorder.replays) >= 3


def test_a_step_is_one_copy_up_and_one_down_beside_its_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = captured("qwen2-window", (1, 2, 4))
    programs = Programs([Driver(engine), plain_driver("qwen2-window")], 3, "graphs copies", lists=False)
    for t, tokens in enumerate((5, 9, 4)):
        programs.prefill(t, tokens)
    programs.drivers.pop()
    decoder: Any = engine.decoder
    wrappers = [wrapper for made in decoder.layers.values() for wrapper in made[0].attention._wrappers.values()]
    before = sum(wrapper.copies for wrapper in wrappers), sum(wrapper.plans for wrapper in wrappers)
    copies = []
    for name in ("up", "up_into", "up_bytes", "down"):  # of all that copy: the pools and FlashInfer have their own
        call = getattr(Transfers, name)

        def noted(*args: Any, name: str = name, call: Any = call) -> Any:
            copies.append(name)
            return call(*args)

        monkeypatch.setattr(Transfers, name, noted)
    driver = programs.drivers[0]
    monkeypatch.setattr(programs, "_same", lambda batches, **fields: programs._step(driver, batches, fields))
    for chosen in ([0, 1, 2], [1], [2, 0]):
        programs.decode(chosen)
    assert copies == ["up_into", "down"] * 3
    assert sum(wrapper.copies for wrapper in wrappers) == before[0]  # FlashInfer sends no list either
    assert sum(wrapper.plans for wrapper in wrappers) == before[1] + 3 * 2  # a plan for each window


def test_a_step_whose_plan_differs_from_the_captured_one_runs_eagerly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    flashinfer_shadow.install(monkeypatch)
    name = "qwen2-window"
    engine, _ = captured(name, (1, 2))
    decoder: Any = engine.decoder
    static = decoder.layers[2][0].attention
    assert isinstance(static, FlashInferStatic)
    assert len(static._wrappers) == len(set(read_config(checkpoint(name)).windows)) == 2
    programs = Programs([Driver(engine), plain_driver(name)], 2, "graphs replan", lists=False)
    for t, tokens in enumerate((5, 9)):
        programs.prefill(t, tokens)
    programs.decode([0, 1])
    replays = decoder.replays
    next(iter(static._captured.values()))[0] = 99  # of the first window: the second one is planned all the same
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            programs.decode([0, 1])
            programs.decode([1])
    programs.compare_pools()
    assert decoder.replays == replays + 3  # those of one row
    assert not decoder.layers[2]
    assert caplog.text.count("the graph of 2 rows is dropped") == caplog.text.count("is dropped") == 1


def test_graphs_of_all_sizes_share_the_memory_of_plans() -> None:
    engine, _ = captured("qwen2-window", (1, 4))
    decoder: Any = engine.decoder
    large, small = (decoder.layers[rows][0].attention._wrappers for rows in (4, 1))
    for window, wrapper in large.items():
        assert small[window]._int_workspace_buffer is wrapper._int_workspace_buffer
        assert small[window]._pin_memory_int_workspace_buffer is wrapper._pin_memory_int_workspace_buffer
    assert len({id(w._int_workspace_buffer) for w in large.values()}) == 2


def test_what_flashinfer_takes_later_is_asked_for_before_pages_are(monkeypatch: pytest.MonkeyPatch) -> None:
    model = checkpoint("qwen2-window")
    options: dict[str, Any] = {"dtype": "float32", "attention": "flashinfer", "num_pages": 4}
    engine = loader.load_engine(model, **options)
    decoder: Any = engine.decoder
    later = decoder.attention.later_bytes(0)
    assert later == PLAN_BYTES * (3 * 2 + 1)  # decode, append and masks for two windows, and positions
    assert decoder.attention.later_bytes(1000) == later + 2 * PLAN_BYTES + 4 * 1000

    asked = pool_bytes(engine.pools.sizes, read_config(model), 4) + later
    free = iter([1 << 40, asked, 1 << 40, asked - 1])  # before loading, and once weights and the workspace are there
    monkeypatch.setattr(memory, "free_bytes", lambda _: next(free))
    loader.load_engine(model, **options)
    with pytest.raises(OutOfDeviceMemory) as refused:
        loader.load_engine(model, **options)
    assert refused.value.fields["asked_bytes"] == asked
