"""What `tartlet doctor` says of kernels, over the shadow of FlashInfer, and what the FlashInfer path lacks."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from tartlet_common.config.settings import WorkerSettings
from tartlet_worker.attention import flashinfer_modules as modules
from tartlet_worker.attention import triton_kernels
from tartlet_worker.attention.shape import Shape, classify
from tartlet_worker.attention.triton_paged import TritonPaged
from tartlet_worker.torch_engine import attention_choice, gpu_checks
from tartlet_worker.torch_engine.differing import WINDOW
from tests.worker import flashinfer_shadow

NEEDS = modules.Needs(head_dim=128, dtype="bfloat16", group=4)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with all modules built for 9.0a, and no tools to build any."""
    monkeypatch.setattr(metadata, "version", lambda _: modules.VERSION)
    monkeypatch.setenv("FLASHINFER_DISABLE_JIT", "1")
    aot = tmp_path / "data" / "aot"
    for name in NEEDS.modules():
        (aot / name).mkdir(parents=True)
        (aot / name / f"{name}.so").touch()
    said = {"version": modules.VERSION, "architectures": ["9.0a"], "modules": {name: {} for name in NEEDS.modules()}}
    (aot / modules.MANIFEST).write_text(json.dumps(said))
    return tmp_path


def test_nothing_is_missing_where_all_modules_are_built(installed: Path) -> None:
    assert modules.lacks(NEEDS, "9.0", installed) == modules.unbuilt(NEEDS, "9.0", installed) == ""
    assert NEEDS.modules()[0] in modules.unbuilt(NEEDS, "8.0", installed)


@pytest.mark.parametrize(
    ("change", "capability", "said"),
    [
        ({"dtype": "float32"}, "9.0", "float32"),
        ({"head_dim": 80}, "9.0", "80"),
        ({"windows": True}, "9.0", "use_swa_True"),
        ({"group": 2}, "9.0", "batch_decode"),
        ({}, "8.0", "aren't built"),
    ],
)
def test_the_reason_names_what_is_missing(installed: Path, change: dict[str, Any], capability: str, said: str) -> None:
    assert said in modules.lacks(replace(NEEDS, **change), capability, installed)


def test_another_release_is_not_taken(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: "0.7.3")
    assert "0.7.3" in modules.lacks(NEEDS, "9.0", installed)


def test_modules_are_loaded_at_start_and_a_failure_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []

    class Spec:
        is_aot = False

        def __init__(self, name: str) -> None:
            self.name = name

        def build_and_load(self) -> None:
            loaded.append(self.name)
            if self.name == "broken":
                raise OSError("libcudart.so.13")

    monkeypatch.setattr(modules, "specs", lambda needs: {name: Spec(name) for name in needs.modules()})
    assert modules.load(NEEDS) == ""
    assert loaded == NEEDS.modules()
    monkeypatch.setattr(modules, "specs", lambda _: {"broken": Spec("broken")})
    assert "libcudart" in modules.load(NEEDS)


def test_the_small_batch_has_every_class_that_flashinfer_runs() -> None:
    batch, _ = gpu_checks.small_batch()
    assert set(classify(batch, windowed=False).shape) == {Shape.DECODE, Shape.APPEND, Shape.SEEN, Shape.MASKED}
    assert batch.page_size < triton_kernels.BLOCK < WINDOW < 2 * triton_kernels.RUN < gpu_checks.COLUMNS
    assert triton_kernels.RUN < WINDOW


@pytest.mark.parametrize("kernel", ["attend", "merge"])
def test_a_fault_in_long_columns_or_in_a_window_is_told(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is read twice as long, or left out, differs only where columns are many."""
    config = replace(gpu_checks.default_config(), heads=2, kv_heads=1, head_dim=16)
    run = TritonPaged.run

    def wrong(self: Any, prepared: Any, q: torch.Tensor, kv: torch.Tensor, window: int | None) -> torch.Tensor:
        if kernel == "merge":  # the third run is lost
            tiles = prepared.tiles.clone()
            tiles[:, 3] = tiles[:, 3].clamp(max=2 * triton_kernels.RUN)
            prepared = replace(prepared, tiles=tiles)
        elif window == WINDOW:
            window -= 4
        return run(self, prepared, q, kv, window)

    monkeypatch.setattr(TritonPaged, "run", wrong)
    assert gpu_checks.triton_finding("cpu", config, "").status == "fail"


def test_kernels_that_agree_are_ok(monkeypatch: pytest.MonkeyPatch) -> None:
    flashinfer_shadow.install(monkeypatch, anything=False)
    said = list(gpu_checks.flashinfer_findings("cpu", gpu_checks.default_config(), "bfloat16", "", "9.0"))
    assert [finding.status for finding in said] == ["ok", "ok"]


@pytest.mark.parametrize("fault", ["wrong", "raises", "nan"])
def test_kernels_that_fail_are_told_with_a_remedy(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    flashinfer_shadow.install(monkeypatch, anything=False)

    def run(self: Any, q: torch.Tensor, cache: Any, *args: Any, out: torch.Tensor, **_: Any) -> torch.Tensor:
        if fault == "raises":
            raise RuntimeError("no kernel image is available")
        return out.fill_(float("nan") if fault == "nan" else 0.5)

    monkeypatch.setattr(flashinfer_shadow.BatchPrefillWithPagedKVCacheWrapper, "run", run)
    *_, said = gpu_checks.flashinfer_findings("cpu", gpu_checks.default_config(), "bfloat16", "", "9.0")
    assert said.status == "fail"
    assert said.remedy


def test_a_package_without_a_parameter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    flashinfer_shadow.install(monkeypatch)
    assert gpu_checks.parameters_lack(flashinfer_shadow) == ""
    monkeypatch.setattr(flashinfer_shadow.BatchDecodeWithPagedKVCacheWrapper, "_plan_impl", lambda self, indptr: None)
    said = next(gpu_checks.flashinfer_findings("cpu", gpu_checks.default_config(), "bfloat16", "", "9.0"))
    assert said.status == "fail"


@pytest.mark.parametrize(
    ("settings", "status", "said"),
    [
        ({}, "ok", "flashinfer"),
        ({"attention": "torch-gather"}, "ok", "torch-gather"),
        ({"attention": "triton"}, "fail", "no compiler"),
        ({"attention": "flashinfer", "batch_invariant": True}, "fail", "batch_invariant"),
    ],
)
def test_doctor_names_the_path_that_the_settings_lead_to(settings: dict[str, Any], status: str, said: str) -> None:
    path, found = gpu_checks.attention_finding(
        "cuda", WorkerSettings(**settings), triton_lacks="no compiler", flashinfer_lacks=""
    )
    assert found.status == status
    assert found.found.startswith(path)
    assert said in found.found
    assert bool(found.remedy) == (status == "fail")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device, whose own path is named")
def test_doctor_names_the_path_that_a_gpu_would_take_where_there_is_none(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules, "package", lambda: installed)
    for names, path in (([], "flashinfer"), (NEEDS.modules()[:1], "triton")):
        for name in names:
            (installed / "data" / "aot" / name / f"{name}.so").unlink()
        monkeypatch.setattr(attention_choice, "triton_lacks", lambda: "")
        *_, found = gpu_checks.checks("cuda", gpu_checks.default_config(), WorkerSettings(dtype="bfloat16"))
        assert (found.name, found.status) == ("attention elsewhere", "ok")
        assert f"of capability 9.0: {path}: " in found.found


def test_a_gpu_with_a_number_is_the_current_one_before_a_kernel_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []

    def first_use(device: str) -> None:
        assert used == [device]
        raise InterruptedError

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu_checks, "use_device", used.append)
    monkeypatch.setattr(gpu_checks, "_device", first_use)
    with pytest.raises(InterruptedError):
        list(gpu_checks.checks("cuda:1", gpu_checks.default_config(), WorkerSettings()))


def test_triton_is_held_against_gathered_pages_and_its_absence_is_a_warning() -> None:
    config = replace(gpu_checks.default_config(), heads=2, kv_heads=1, head_dim=16)
    assert gpu_checks.triton_finding("cpu", config, "").status == "ok"
    assert gpu_checks.triton_finding("cpu", config, "Triton is not installed").status == "warn"
