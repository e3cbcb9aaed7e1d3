"""The worker says why decoding does not take the fast path, and what to change."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest
import torch

from tartlet_worker.kernels import available
from tartlet_worker.models.c_decoder import CDecoder
from tartlet_worker.torch_engine.fast_path import Machine, slow_path_reasons
from tartlet_worker.torch_engine.loader import load_engine
from tests.worker.families import checkpoint

FIT = Machine(missing_cpu_flags=(), kernels_built=True)
NAME = "llama3-grouped"


def test_a_fit_machine_in_bfloat16_on_one_thread_has_no_reason() -> None:
    assert slow_path_reasons("cpu", "bfloat16", 1, 4, FIT) == []


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"dtype": "float32"}, "dtype=bfloat16"),
        ({"threads": 2}, "threads=1"),
        ({"group": 33}, "33 query heads"),
        ({"machine": Machine(["avx512_bf16"], kernels_built=False)}, "avx512_bf16"),
        ({"machine": Machine((), kernels_built=False)}, "kernels.build"),
    ],
)
def test_each_obstacle_alone_is_one_reason_that_names_it(change: dict[str, object], names: str) -> None:
    fields: dict[str, object] = {"device": "cpu", "dtype": "bfloat16", "threads": 1, "group": 4, "machine": FIT}
    (reason,) = slow_path_reasons(**{**fields, **change})  # type: ignore[arg-type]
    assert names in reason


def test_a_gpu_has_no_such_fast_path_to_miss() -> None:
    assert slow_path_reasons("cuda:0", "float32", 8, 64, Machine(["avx512f"], kernels_built=False)) == []


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_log_says_it_exactly_where_the_c_decoder_does_not_run(
    dtype: str, threads: int, caplog: pytest.LogCaptureFixture
) -> None:
    before = torch.get_num_threads()
    try:
        with caplog.at_level(logging.WARNING, "tartlet.worker"):
            engine = load_engine(checkpoint(NAME), dtype=dtype, threads=threads, num_pages=4)
    finally:
        torch.set_num_threads(before)
    told = [record.getMessage() for record in caplog.records if "fast path" in record.getMessage()]
    assert isinstance(engine.decoder, CDecoder) == (not told)
    assert isinstance(engine.decoder, CDecoder) == (available() and dtype == "bfloat16" and threads == 1)
    assert any("dtype=bfloat16" in line for line in told) == (dtype == "float32")
    assert any("threads=1" in line for line in told) == (threads == 2)


def test_a_choice_by_hand_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    load_engine(checkpoint(NAME), dtype="float32", kernels="torch", num_pages=4)
    assert not [record for record in caplog.records if "fast path" in record.getMessage()]


def test_the_module_answers_as_a_process_without_torch() -> None:
    env = os.environ | {"TARTLET_WORKER_DTYPE": "float32", "TARTLET_WORKER_THREADS": "2"}
    script = "import runpy, sys; runpy.run_module('tartlet_worker.torch_engine.fast_path', run_name='__main__')"
    code = f"import sys; sys.modules['torch'] = None; {script}"
    told = subprocess.run(
        [sys.executable, "-c", code, str(checkpoint(NAME))], env=env, capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr
    assert "dtype=bfloat16" in told.stdout
    assert "threads=1" in told.stdout
