"""What `tartlet doctor` says of graphs and the driver, with a recorder in place of capture."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tartlet_worker.attention.base import PlanChanged
from tartlet_worker.attention.flashinfer import FEW_ROWS
from tartlet_worker.attention.flashinfer_static import FlashInferStatic
from tartlet_worker.attention.triton_kernels import RUN
from tartlet_worker.torch_engine.differing import CLOSE, WINDOW, farthest
from tartlet_worker.torch_engine.driver_check import driver_finding
from tartlet_worker.torch_engine.gpu_checks import default_config
from tartlet_worker.torch_engine.graph_check import graph_finding
from tests.worker.graphs.recorder import Recorder

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="FlashInfer itself may be there")
CONFIG = replace(default_config(), windows=(None, 6))
INTERPRETED = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="Triton's interpreter is off")


class Forgetful:
    """A capture whose graphs replay nothing."""

    def graph(self, body: Callable[[], None]) -> Callable[[], None]:
        body()
        return lambda: None


@pytest.mark.parametrize("name", ["flashinfer", pytest.param("triton", marks=INTERPRETED)])
def test_replays_over_other_tables_agree_with_gathered_pages(name: str) -> None:
    recorder = Recorder(strict=name != "triton")
    small = replace(CONFIG, heads=2, kv_heads=1, head_dim=16, windows=(None,))
    config = CONFIG if name == "flashinfer" else small  # the interpreter is slow
    said = graph_finding(name, "cpu", config, recorder)
    assert said.status == "ok", said
    assert recorder.replays == ([2, 2] if name == "flashinfer" else [2])


def test_replays_read_more_than_two_runs_of_columns_of_few_rows_and_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    fill = FlashInferStatic.fill

    def noted(self: FlashInferStatic, pages: npt.NDArray[np.int32], position: npt.NDArray[np.int32]) -> None:
        seen.append((len(position), int(position.max())))
        fill(self, pages, position)

    monkeypatch.setattr(FlashInferStatic, "fill", noted)
    assert graph_finding("flashinfer", "cpu", CONFIG, Recorder()).status == "ok"
    for rows in (2, FEW_ROWS + 2):
        assert max(position for count, position in seen if count == rows) >= max(2 * RUN, WINDOW)


def test_one_page_that_is_left_out_of_many_shows() -> None:
    generator = torch.Generator().manual_seed(3)
    weights = torch.randn(7, 1300, generator=generator).softmax(-1)
    values = torch.randn(1300, 64, generator=generator)
    want = weights @ values
    assert farthest(want.bfloat16(), want) < CLOSE / 3
    for page in range(0, 1300, 100):
        weights[:, page : page + 4] = 0
        assert farthest(weights @ values, want) > CLOSE
        weights = torch.randn(7, 1300, generator=generator).softmax(-1)
        want = weights @ values
    want[3] = 0  # a query that sees nothing
    assert farthest(want, want) == 0
    assert farthest(want + 1e-4, want) > CLOSE
    assert farthest(want * float("nan"), want) == float("inf")


def test_a_graph_that_does_not_read_the_new_tables_is_told_with_a_remedy() -> None:
    said = graph_finding("flashinfer", "cpu", CONFIG, Forgetful())
    assert (said.status, "differ" in said.found, bool(said.remedy)) == ("fail", True, True)


def test_what_a_capture_raises_is_the_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*_: object) -> None:
        raise PlanChanged("[1] in place of [2]")

    monkeypatch.setattr(FlashInferStatic, "fill", fill)
    said = graph_finding("flashinfer", "cpu", CONFIG, Recorder())
    assert (said.status, "PlanChanged" in said.found, bool(said.remedy)) == ("fail", True, True)
    assert graph_finding("torch-gather", "cpu", CONFIG, Recorder()).status == "warn"


@pytest.mark.parametrize(
    ("driver", "built", "status"),
    [
        ((13, 1), "13.0", "ok"),
        ((13, 0), "12.8", "ok"),
        ((12, 4), "12.8", "warn"),
        ((12, 8), "13.0", "fail"),
        (None, "13.0", "fail"),
        ((13, 0), None, "fail"),
    ],
)
def test_the_driver_is_compared_with_what_torch_was_built_for(
    driver: tuple[int, int] | None, built: str | None, status: str
) -> None:
    said = driver_finding(driver, built)
    assert (said.status, bool(said.remedy)) == (status, status != "ok")
