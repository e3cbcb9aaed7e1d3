"""FlashInfer's own package, which `make setup` brings for these tests: its signatures, modules and sources."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.gpu.bundle import needed
from tartlet_worker.attention import flashinfer_build
from tartlet_worker.attention import flashinfer_modules as modules
from tartlet_worker.torch_engine import gpu_checks
from tests.worker import flashinfer_shadow

PACKAGE = Path(sys.prefix, "flashinfer")
METHODS = ("__init__", "plan", "_plan_impl", "run")
WRAPPERS = ("BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper")


def signatures(module: Any) -> dict[str, list[list[str]]]:
    """Name, kind and default of each parameter of the wrappers' methods, and of the function that plans again."""
    methods = {
        f"{wrapper}.{method}": getattr(getattr(module, wrapper), method)
        for wrapper in WRAPPERS
        for method in METHODS
        if hasattr(getattr(module, wrapper), method)
    }
    return {
        name: [
            [p.name, str(p.kind), "" if p.default is p.empty else repr(p.default)]
            for p in inspect.signature(function).parameters.values()
        ]
        for name, function in {**methods, "fast_decode_plan": module.fast_decode_plan}.items()
    }


TELL = f"""
import inspect, json, flashinfer
from tartlet_worker.attention import flashinfer_modules as modules
from tartlet_worker.attention.flashinfer_build import trim
from tartlet_worker.torch_engine.gpu_checks import parameters_lack
WRAPPERS, METHODS = {WRAPPERS}, {METHODS}
{inspect.getsource(signatures).replace(": Any", "").replace(" -> dict[str, list[list[str]]]", "")}
needs = list(modules.every_need())
print("told", json.dumps({{
    "version": flashinfer.__version__,
    "signatures": signatures(flashinfer),
    "lack": parameters_lack(flashinfer),
    "names": [list(modules.specs(one)) for one in needs],
    "sources": [str(path) for spec in modules.specs(needs[0]).values() for path in spec.sources],
    "seen": [str(path) for path in modules.specs(needs[0])[modules.seen_module(64, "bfloat16")].sources],
    "trimmed": {{  # last, because `specs` writes all sources anew
        name: [trim(name, spec.sources), [str(path) for path in spec.sources]]
        for name, spec in modules.specs(needs[0]).items()
    }},
}}))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the installed package says, in a process of its own: its import patches torch."""
    assert PACKAGE.is_dir(), "run `make setup`, which brings FlashInfer's sources"
    home = tmp_path_factory.mktemp("flashinfer")
    env = os.environ | {
        "PYTHONPATH": str(PACKAGE), "FLASHINFER_WORKSPACE_BASE": str(home), "FLASHINFER_CUDA_ARCH_LIST": "9.0a",
    }  # fmt: skip
    found = subprocess.run([sys.executable, "-c", TELL], env=env, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-3000:]
    said = next(line for line in found.stdout.splitlines() if line.startswith("told "))
    return dict(json.loads(said.removeprefix("told ")))


def test_the_shadow_has_the_signatures_of_the_package(told: dict[str, Any]) -> None:
    assert told["version"] == modules.VERSION
    mine = signatures(flashinfer_shadow)
    assert told["signatures"] == mine
    assert len(mine) == 8


def test_the_package_has_the_parameters_that_the_path_gives(told: dict[str, Any]) -> None:
    assert told["lack"] == ""
    assert set(gpu_checks.PARAMETERS) == {*WRAPPERS, "fast_decode_plan"}


def test_the_modules_have_the_names_that_the_package_gives_them(told: dict[str, Any]) -> None:
    assert told["names"] == [needs.modules() for needs in modules.every_need()]


def test_the_variant_is_in_the_sources_that_are_compiled(told: dict[str, Any]) -> None:
    config = next(Path(source).parent for source in told["seen"]) / "batch_prefill_config.inc"
    assert modules.SEEN_SOURCE.strip() in config.read_text()
    assert "int32_t* seen;" in config.read_text()


def test_kernels_that_the_path_never_launches_are_not_compiled(told: dict[str, Any]) -> None:
    kept = {}
    for name, (count, sources) in told["trimmed"].items():
        texts = {Path(path).stem: Path(path).read_text() for path in sources}
        refused = {stem for stem, text in texts.items() if "return cudaErrorNotSupported;" in text}
        assert len(refused) == count
        for stem in refused:  # the launchers have the names and arguments under which the host's code finds them
            assert "prefill.cuh" not in texts[stem]
            assert texts[stem].count("\ntemplate cudaError_t BatchPrefillWith") == 3
            kind = "Ragged" if "ragged" in stem else "Paged"
            assert f"cudaError_t BatchPrefillWith{kind}KVCacheDispatched(Params, " in texts[stem]
        kept[name] = {stem[-1] for stem in texts if "_kernel_mask_" in stem and stem not in refused}
    full, windowed, decode, decode_windowed, seen, masks = kept.values()
    assert (full, windowed, seen) == ({"0", "1", "2"}, {"0", "1"}, {"2"})
    assert not decode | decode_windowed | masks


def test_a_build_goes_on_after_a_module_that_fails_and_after_it_was_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Spec:
        """FlashInfer's recipe, with a compiler that copies."""

        sources: tuple[Path, ...] = ()

        def __init__(self, name: str) -> None:
            self.name, self.jit_library_path = name, tmp_path / f"{name}.made"

        def build(self) -> None:
            if self.name == broken:
                raise RuntimeError(f"nvcc says no to {self.name}")
            self.jit_library_path.write_text(self.name)

    monkeypatch.setattr(modules, "specs", lambda needs: {name: Spec(name) for name in needs.modules()})
    monkeypatch.setenv("FLASHINFER_CUDA_ARCH_LIST", "9.0a")
    needs = next(modules.every_need((128,)))
    broken, made = needs.modules()[1], list[str]()
    with pytest.raises(flashinfer_build.BuildFailed, match=broken):
        flashinfer_build.build([needs], tmp_path, "9.0a", tell=lambda built: made.append(built.name))
    assert sorted(made) == sorted(
        name for name in needs.modules() if name != broken
    )  # any order: they end side by side
    assert {name for name in needs.modules() if modules.built(tmp_path, name, "9.0")} == set(made)
    assert not modules.built(tmp_path, made[0], "8.9")

    broken, made = "", []
    flashinfer_build.build([needs], tmp_path, "9.0a", jobs=2, tell=lambda built: made.append(built.name))
    assert made == [needs.modules()[1]]
    assert not modules.unbuilt(needs, "9.0", tmp_path)
    flashinfer_build.build([needs], tmp_path, "8.9", only=made[0])  # for other devices: nothing of before counts
    assert modules.unbuilt(needs, "9.0", tmp_path)
    assert modules.built(tmp_path, made[0], "8.9")


def test_a_bundle_for_a_gpu_machine_keeps_the_sources_of_the_modules(told: dict[str, Any]) -> None:
    sources = [Path(path).relative_to(PACKAGE) for path in told["sources"] if Path(path).is_relative_to(PACKAGE)]
    assert {path.name for path in sources} >= {"quantization.cu"}
    assert all(needed(str(path)) for path in sources)


def test_the_locked_release_is_the_one_that_the_path_was_written_for(repo: Path) -> None:
    for name in ("flashinfer", "image-worker-cuda"):
        assert f"flashinfer-python=={modules.VERSION} " in (repo / "constraints" / f"{name}.txt").read_text()
    assert f'"flashinfer-python=={modules.VERSION}"' in (repo / "pyproject.toml").read_text()
