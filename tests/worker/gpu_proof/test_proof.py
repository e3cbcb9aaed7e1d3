"""The proof on a GPU, rehearsed on the CPU: every step runs, and a step that fails or hangs stops no other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bench.gpu import classes, paths, proof, step
from bench.gpu.bundle import MACHINE, PACKAGES, assemble, locked, needed, unbuilt
from bench.gpu.kernels import Kernels
from bench.gpu.loops import Rig
from bench.gpu.paths import NO_BUILDS, environment
from bench.gpu.plan import STEPS, TOTAL_S, Step, limit_of
from bench.gpu.proof import ARCHIVE, keep, main, prove
from bench.gpu.record import Record
from bench.gpu.shapes import checkpoint
from bench.gpu.steps import flashinfer, preflight, suites
from tartlet_worker.attention.shape import Shape
from tests.worker import flashinfer_shadow
from tests.worker.gpu.test_ahead_of_time import built_before

BY_NAME = {s.name: s for s in STEPS}


@pytest.mark.timeout(1800)
def test_every_step_runs_on_the_cpu(tmp_path: Path) -> None:
    assert main(["--rehearse", "--out", str(tmp_path)]) == 0
    records = {file.stem: json.loads(file.read_text()) for file in (tmp_path / "steps").glob("*.json")}
    assert set(records) == set(BY_NAME)
    assert {record["outcome"] for record in records.values()} == {"passed"}
    taken = {row["path"] for row in records["decode"]["data"]["rows"]}
    assert taken == {
        "torch-gather, eager",
        "triton, eager",
        "triton, graphs",
        "flashinfer, eager",
        "flashinfer, graphs",
    }
    assert {row["programs"] for row in records["programs"]["data"]["rows"]} == {1, 2}
    assert len(records["policies"]["data"]["rows"]) == 2
    held = [claim["holds"] for claim in records["claims"]["data"].values()]
    assert held == [True] * 4
    kept = keep(tmp_path / ARCHIVE, tmp_path / "results")
    assert kept == tmp_path / "results" / "cpu-rehearsal"
    assert (kept / "decode.json").exists()
    assert (kept / "decode-1b.png").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="the step would not fail")
def test_a_step_that_fails_or_hangs_does_not_stop_the_next(tmp_path: Path) -> None:
    hangs = Step("baseline", "baseline", 1, "importing torch takes longer")
    without_a_card = Step("weights", "weights", 600, "there is no CUDA device")
    records = prove([hangs, without_a_card], tmp_path, rehearse=False, total_s=3600)
    assert [record["outcome"] for record in records] == ["timeout", "failed"]
    assert records[1]["reason"]
    with tarfile.open(tmp_path / ARCHIVE) as packed:
        assert {"baseline.json", "weights.json", "weights.log"} <= set(packed.getnames())


def wait_for(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except FileNotFoundError:
        return True


def test_a_build_in_the_background_is_recorded_and_ends_with_the_proof(tmp_path: Path) -> None:
    env = environment(os.environ, tmp_path, None, rehearse=False)
    assert env[NO_BUILDS] == "1"  # no step compiles
    build = f"""
import os, pathlib, sys, time
assert {NO_BUILDS!r} not in os.environ
print("module: 3 s, 12 bytes", flush=True)
if sys.argv[1] == "hangs":
    if child := os.fork():
        pathlib.Path({str(tmp_path)!r}, "child").write_text(str(child))
    time.sleep(600)
sys.exit(int(sys.argv[1]))
"""
    for how, outcome in (("0", "passed"), ("1", "failed"), ("hangs", "timeout")):
        kernels = Kernels(tmp_path, env, ("-c", build, how))
        if how == "hangs":
            wait_for(lambda: (tmp_path / "child").exists() and bool((tmp_path / "child").read_text()))
            assert kernels.running()
            assert kernels.record()["outcome"] == "running"
        else:
            kernels.wait(60)
        told = kernels.stop()
        assert told["outcome"] == outcome
        assert told["data"]["built"] == ["module: 3 s, 12 bytes"]
        assert json.loads((tmp_path / "kernels.json").read_text()) == told
        assert not kernels.running()
    child = int((tmp_path / "child").read_text())
    wait_for(lambda: gone(child))


def test_the_steps_wait_a_while_for_flashinfers_modules_and_go_on_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = []

    class Slow:
        """A build that ends only with the proof."""

        def __init__(self, work: Path, env: Any) -> None:
            said.append("began")

        def wait(self, most_s: float) -> None:
            said.append(f"waited {most_s:.0f}")

        def running(self) -> bool:
            return True

        def record(self) -> dict[str, Any]:
            return {"step": "kernels", "outcome": "running"}

        def stop(self) -> dict[str, Any]:
            said.append("stopped")
            return {"step": "kernels", "outcome": "timeout"}

    def run_step(step: Step, *_: Any) -> dict[str, Any]:
        said.append(step.name)
        return {"step": step.name, "outcome": "passed"}

    monkeypatch.setattr(proof, "Kernels", Slow)
    monkeypatch.setattr(proof, "run_step", run_step)
    steps = [BY_NAME["baseline"], BY_NAME["flashinfer"]]
    records = prove(steps, tmp_path, rehearse=False)
    assert said == ["began", "baseline", "waited 60", "flashinfer", "stopped"]
    assert all(record["beside_a_build"] for record in records)
    said.clear()
    prove(steps, tmp_path, rehearse=False, without_flashinfer=True)
    prove(steps, tmp_path, rehearse=True)
    assert said == ["baseline", "flashinfer"] * 2


def test_what_cannot_be_imported_fails_the_preflight(tmp_path: Path) -> None:
    record = Record("preflight", tmp_path, rehearse=False)
    preflight.expect_imports(record, ["json", "tartlet_worker.no_such_module"])
    assert record.data["imports"]["json"] == "ok"
    (problem,) = record.problems
    assert "tartlet_worker.no_such_module" in problem


def test_a_failed_check_fails_the_preflight(tmp_path: Path) -> None:
    record = Record("preflight", tmp_path, rehearse=False)
    found = [
        {"name": name, "status": name, "found": "something", "remedy": "a remedy"} for name in ("ok", "warn", "fail")
    ]
    preflight.expect_checks(record, found[:2])
    assert not record.problems
    preflight.expect_checks(record, found)
    assert len(record.problems) == 1
    assert record.data["checks"] == found


@pytest.mark.parametrize(("options", "outcome", "ended"), [([], "failed", 1), (["--without-flashinfer"], "skipped", 0)])
def test_a_proof_needs_flashinfer_unless_told_otherwise(
    options: list[str], outcome: str, ended: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", None)  # importing it fails
    monkeypatch.setattr(sys, "argv", ["step", "flashinfer", "--out", str(tmp_path), *options])
    assert step.main() == ended
    told = json.loads((tmp_path / "flashinfer.json").read_text())
    assert told["outcome"] == outcome
    assert told["reason"]


def test_flashinfer_is_compared_in_every_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that hides a column shows."""
    flashinfer_shadow.install(monkeypatch)
    monkeypatch.setattr(classes, "CONTEXTS", (3,))
    monkeypatch.setattr(classes, "PAGE_SIZES", (4,))
    rig = Rig(checkpoint("1b", tmp_path, rehearse=True), "cpu", num_pages=4, batch=1)
    for wrapper in (
        flashinfer_shadow.BatchDecodeWithPagedKVCacheWrapper, flashinfer_shadow.BatchPrefillWithPagedKVCacheWrapper,
        None,
    ):  # fmt: skip
        record = Record("flashinfer", tmp_path, rehearse=True)
        with pytest.MonkeyPatch.context() as patch:
            if wrapper is not None:
                patch.setattr(wrapper, "_see", _without_the_first_column(wrapper._see))
            classes.compare_classes(record, rig, [])
        assert bool(record.problems) == (wrapper is not None)
        assert {Shape[name] for name in record.data["commands"]} >= classes.PLANNED


@pytest.mark.parametrize("wrong", [None, 3])
def test_one_wrong_row_of_eight_fails_a_comparison_of_decode_steps(
    wrong: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flashinfer_shadow.install(monkeypatch)
    wrapper = flashinfer_shadow.BatchDecodeWithPagedKVCacheWrapper
    see = wrapper._see

    def seen(self: Any, b: int, n: int, length: int) -> torch.Tensor:
        columns: torch.Tensor = see(self, b, n, length).clone()
        if b == wrong:
            columns[:, : length // 2] = False
        return columns

    monkeypatch.setattr(wrapper, "_see", seen)
    rig = Rig(checkpoint("1b", tmp_path, rehearse=True), "cpu", num_pages=8 * 64, batch=8, page_size=5)
    record = Record("flashinfer", tmp_path, rehearse=True)
    flashinfer._decode(record, rig, 5, [])
    assert bool(record.problems) == (wrong is not None)
    (row,) = record.data["rows"]
    far = [b for b, difference in enumerate(row["differences"]) if difference > flashinfer.CLOSE_FLOAT32]
    assert far == ([] if wrong is None else [wrong])


def _without_the_first_column(see: Any) -> Any:
    def seen(wrapper: Any, b: int, n: int, length: int) -> torch.Tensor:
        columns: torch.Tensor = see(wrapper, b, n, length).clone()
        columns[:, 0] = False
        return columns

    return seen


def test_the_proof_runs_all_tests_whose_kernels_run_on_a_card_if_there_is_one(repo: Path) -> None:
    files = (repo / "tests" / "worker").rglob("test_*.py")
    found = {str(file.relative_to(repo)) for file in files if '\nDEVICE = "c' in file.read_text()}
    assert found == {*suites.TESTS}


def test_it_starts_where_nothing_is_installed(repo: Path) -> None:
    alone = [sys.executable, "-S", "-E", str(repo / "bench" / "gpu" / "start.py"), "--help"]
    said = subprocess.run(alone, capture_output=True, text=True, check=False, cwd="/")
    assert said.returncode == 0, said.stderr
    assert "--rehearse" in said.stdout


def test_the_limits_add_up_to_ten_minutes() -> None:
    assert sum(s.limit_s for s in STEPS) <= TOTAL_S
    assert limit_of(STEPS[0], TOTAL_S - 1) == 0
    for s in STEPS:
        assert limit_of(s, TOTAL_S - 10) == min(s.limit_s, 10)


def test_what_no_time_is_left_for_is_skipped(tmp_path: Path) -> None:
    (record,) = prove([BY_NAME["swap"]], tmp_path, rehearse=True, total_s=1)
    assert record["outcome"] == "skipped"
    assert json.loads((tmp_path / "steps" / "swap.json").read_text())["reason"] == "no time is left"


def test_a_bundle_is_made_of_locked_packages(repo: Path) -> None:
    texts = [(repo / "constraints" / f"{name}.txt").read_text() for name in ("image-base", "image-worker-cuda")]
    blocks = locked(PACKAGES, texts)
    for name in PACKAGES:
        assert f"\n{name}==" in f"\n{blocks}"
    assert blocks.count("--hash=sha256:") >= len(PACKAGES)
    assert needed("flashinfer/data/include/flashinfer/page.cuh")
    assert needed("flashinfer/data/csrc/batch_decode.cu")
    assert not needed("flashinfer/data/csrc/fused_moe/moe.cu")


def required(name: str, extras: Iterable[str] = ()) -> set[str]:
    """Return the packages that an installed package needs on Linux; none if it isn't installed here."""
    try:
        lines = metadata.requires(name) or ()
    except metadata.PackageNotFoundError:
        return set()
    found = [Requirement(line) for line in lines]
    taken = [
        one for one in found
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras))
    ]  # fmt: skip
    return {str(canonicalize_name(one.name)) for one in taken}


def test_a_bundle_and_its_machine_have_what_the_roles_need() -> None:
    machine: set[str] = set()
    more = {*MACHINE}
    while more:
        machine |= more
        more = set().union(*map(required, more)) - machine
    wanted = set().union(*map(required, PACKAGES), required("tartlet", ("control", "runtime", "worker")))
    # A faster shim and a faster loop, which are optional; the command line; certificates. The proof uses none of them.
    assert wanted - machine - {*PACKAGES} <= {"cffi", "click", "cryptography", "uvloop"}


def test_a_bundle_brings_what_compiles_the_modules_that_are_missing(tmp_path: Path) -> None:
    wheel, header = tmp_path / "flashinfer-1-py3-none-any.whl", "flashinfer/data/cccl/header.h"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr(header, "text")
    every = unbuilt(None)
    assert len(every) == 16
    for missing in (1, 0):
        aot, site = built_before(every[missing:], tmp_path / f"aot{missing}", wheel), tmp_path / f"site{missing}"
        site.mkdir()
        assert unbuilt(aot) == every[:missing]
        assemble([wheel], aot, site)
        assert (site / header).exists() == bool(missing)
    assert unbuilt(built_before(every, tmp_path / "other", wheel, version="0.0.1")) == every


def test_a_bundle_holds_what_is_needed_of_wheels_and_built_modules(tmp_path: Path) -> None:
    wheel, aot, site = tmp_path / "flashinfer-1-py3-none-any.whl", tmp_path / "aot", tmp_path / "site"
    with zipfile.ZipFile(wheel, "w") as packed:
        for name in ("flashinfer/decode.py", "flashinfer/data/cutlass/large.h", "flashinfer-1.dist-info/METADATA"):
            packed.writestr(name, "text")
    (aot / "seen").mkdir(parents=True)
    (aot / "seen" / "seen.so").write_bytes(b"built")
    (aot / "manifest.json").write_text("{}")
    site.mkdir()
    assemble([wheel], aot, site)
    files = {str(file.relative_to(site)) for file in site.rglob("*") if file.is_file()}
    assert {"flashinfer/decode.py", "flashinfer-1.dist-info/METADATA"} <= files
    assert {"flashinfer/data/aot/seen/seen.so", "flashinfer/data/aot/manifest.json"} <= files
    assert "flashinfer/data/cutlass/large.h" not in files
    assert any(name.startswith("tartlet-") for name in files)  # the runtime asks for its own release
    assert any(name.startswith("componentize_py-") for name in files)


def test_a_bundle_for_another_python_is_left_alone_and_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "BUNDLED_PYTHON", sys.version_info[:2])
    assert paths.unusable(tmp_path) == paths.unusable(tmp_path / "none") == ""
    assert paths.unpack(tmp_path, tmp_path / "here") == tmp_path / "here" / "site"
    monkeypatch.setattr(paths, "BUNDLED_PYTHON", (3, 99))
    assert "3.99" in paths.unusable(tmp_path)
    assert paths.unusable(tmp_path / "none") == ""
    assert paths.unpack(tmp_path, tmp_path / "here") is None


def test_a_bundle_comes_before_what_is_installed(tmp_path: Path) -> None:
    env = environment({"PYTHONPATH": "mine"}, tmp_path, tmp_path / "site", rehearse=False)
    places = env["PYTHONPATH"].split(os.pathsep)
    assert places[0] == str(tmp_path / "site")
    assert places[-1] == "mine"
    assert env["TARTLET_CACHE_DIR"].startswith(str(tmp_path))
    assert env["TRITON_INTERPRET"] == "0"
