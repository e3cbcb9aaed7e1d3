"""Layers of experts that a graph can hold, on the CPU, where torch's grouped multiplication loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tartlet_worker.models import torch_decoder
from tartlet_worker.models.feed_forward import groups
from tartlet_worker.torch_engine.graph_choice import obstacle
from tests.worker.graphs.test_graph_decoder import Programs, graph_driver, plain_driver
from tests.worker.numerics import test_numerics as numerics


@pytest.fixture
def grouped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts as an H100 has them."""
    monkeypatch.setattr(torch_decoder, "groups", lambda _device, _dtype: True)


@pytest.mark.usefixtures("grouped")
@pytest.mark.parametrize("name", ["qwen3-moe", "qwen3-moe-mixed"])
def test_grouped_experts_give_the_logits_of_transformers(name: str) -> None:
    model = numerics.Model(name, "torch")
    driver, pages = numerics.engine(model), [9, 2, 40, 7, 5]
    parts = [driver.prefill(numerics.TOKENS[:70], pages)]
    parts += [driver.prefill(numerics.TOKENS[i : i + 1], pages, first=i, embed0=200) for i in range(70, 75)]
    numerics.close(np.concatenate(parts), numerics.truth(model))


def test_decode_of_experts_through_graphs_gives_what_it_gives_without(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = plain_driver("qwen3-moe")
    with monkeypatch.context() as patch:
        patch.setattr(torch_decoder, "groups", lambda _device, _dtype: True)
        driver, recorder, decoder = graph_driver("qwen3-moe")
    programs = Programs([driver, plain], 4, "graphs of experts", lists=False)
    for t in range(4):
        programs.prefill(t, 3 + t)
    for turn, chosen in enumerate(([0, 1, 2, 3], [2], [1, 3], [3, 0, 1], [0])):
        programs.decode(chosen, hot=turn == 2)
    programs.compare_pools()
    assert decoder.replays == 5
    assert sum(count > 0 for count in recorder.replays) >= 3


def test_experts_that_the_host_counts_are_not_captured() -> None:
    assert "depends on its values" in obstacle(plain_driver("qwen3-moe", kernels="torch").engine.decoder)


@pytest.mark.parametrize(
    ("device", "dtype", "capability", "expected"),
    [
        ("cpu", torch.bfloat16, (9, 0), False),
        ("cuda", torch.float32, (9, 0), False),
        ("cuda", torch.bfloat16, (8, 9), False),
        ("cuda:1", torch.bfloat16, (9, 0), True),
        ("cuda", torch.bfloat16, (10, 3), True),
        ("cuda", torch.bfloat16, (12, 0), False),
    ],
)
def test_experts_are_grouped_where_torch_asks_the_host_nothing(
    device: str, dtype: torch.dtype, capability: tuple[int, int], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def answer(name: Any) -> tuple[int, int]:
        asked.append(name)
        return capability

    monkeypatch.setattr(torch.cuda, "get_device_capability", answer)
    assert groups(device, dtype) == expected
    assert asked in ([], [device])
