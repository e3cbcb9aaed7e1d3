"""FlashInfer's shadow in graphs, with a recorder in place of capture."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tartlet_worker.attention.flashinfer import FlashInfer
from tartlet_worker.attention.flashinfer_static import FlashInferStatic, PlanChanged
from tartlet_worker.checkpoints.model_config import read_config
from tartlet_worker.torch_engine.engine import TorchEngine
from tests.worker import flashinfer_shadow
from tests.worker.driver import Driver
from tests.worker.families import checkpoint
from tests.worker.graphs.recorder import Recorder, with_recorded_graphs
from tests.worker.graphs.test_graph_decoder import SIZE, Programs, plain_driver

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


def test_another_plan_than_the_captured_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    flashinfer_shadow.install(monkeypatch)
    engine, _ = captured("qwen2-window", (1,))
    decoder: Any = engine.decoder
    static = decoder.layers[1][0].attention
    assert isinstance(static, FlashInferStatic)
    assert len(static._wrappers) == len(set(read_config(checkpoint("qwen2-window")).windows)) == 2
    one = torch.ones(1, dtype=torch.int32).numpy()
    static.fill(one, one * SIZE - 1)
    next(iter(static._captured.values()))[0] = 99
    with pytest.raises(PlanChanged):
        static.fill(one, one)


def test_graphs_of_all_sizes_share_the_memory_of_plans() -> None:
    engine, _ = captured("qwen2-window", (1, 4))
    decoder: Any = engine.decoder
    large, small = (decoder.layers[rows][0].attention._wrappers for rows in (4, 1))
    for window, wrapper in large.items():
        assert small[window]._int_workspace_buffer is wrapper._int_workspace_buffer
        assert small[window]._pin_memory_int_workspace_buffer is wrapper._pin_memory_int_workspace_buffer
    assert len({id(w._int_workspace_buffer) for w in large.values()}) == 2
