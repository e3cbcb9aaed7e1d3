"""What the image for CUDA holds in place of compilers: FlashInfer's modules and Triton's launcher."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tartlet_worker.attention import ahead_of_time, flashinfer_modules
from tartlet_worker.torch_engine import attention_choice

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")

BUILD = """
import sys
from pathlib import Path
from tartlet_worker.attention.ahead_of_time import build_launcher
print(build_launcher(Path(sys.argv[1])))
"""
USE = """
from pathlib import Path
from tartlet_worker.torch_engine import attention_choice
from tartlet_worker.attention.ahead_of_time import provide_launcher
assert attention_choice.triton_lacks() == "", attention_choice.triton_lacks()
provide_launcher()
import triton.runtime.build
from triton.backends.nvidia import driver
class Found(Exception):
    pass
def load(name, path):
    raise Found(path)  # its functions of the driver aren't on every machine
triton.runtime.build._load_module_from_path = load
try:
    driver.CudaUtils()  # what the first launch of a kernel makes
except Found as found:
    print(found)
"""


def python(code: str, *arguments: str, **env: str) -> str:
    clean = (
        {k: v for k, v in os.environ.items() if k not in {"CC", "TRITON_CACHE_DIR"}} | {"TRITON_INTERPRET": "0"} | env
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=clean, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def test_triton_finds_its_launcher_without_a_compiler(tmp_path: Path) -> None:
    folder, cache, empty = tmp_path / "built", tmp_path / "cache", tmp_path / "bin"
    library = Path(python(BUILD, str(folder)))
    assert library.is_relative_to(folder)
    empty.mkdir()
    env = {ahead_of_time.LAUNCHER: str(folder), "TRITON_LIBCUDA_PATH": str(folder), "PATH": str(empty)}
    found = Path(python(USE, TRITON_CACHE_DIR=str(cache), **env))
    assert found.is_relative_to(cache)
    assert found.read_bytes() == library.read_bytes()


def test_without_compiler_and_launcher_triton_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv(ahead_of_time.LAUNCHER, str(tmp_path))
    assert "compiler" in attention_choice.triton_lacks()


def test_packages_of_cuda_become_a_toolkit(tmp_path: Path) -> None:
    compiler = tmp_path / "nvcc" / "nvidia" / "cu13"
    (compiler / "bin").mkdir(parents=True)
    (compiler / "bin" / "nvcc").write_text("#!/bin/sh\n")
    installed = Path(sysconfig.get_path("purelib"), "nvidia", "cu13")
    if not installed.is_dir():
        pytest.skip("torch came without CUDA")
    made = ahead_of_time.toolkit(tmp_path / "toolkit", [compiler, installed])
    assert os.access(made / "bin" / "nvcc", os.X_OK)
    for name in ("include/cuda_bf16.h", "lib64/libcudart.so", "lib64/stubs/libcuda.so"):
        assert (made / name).is_file(), name
    assert made == ahead_of_time.toolkit(tmp_path / "toolkit", [compiler, installed])


def test_an_image_has_the_modules_of_every_model_that_flashinfer_serves() -> None:
    there = {name for needs in flashinfer_modules.every_need() for name in needs.modules()}
    for head_dim in flashinfer_modules.HEAD_DIMS:
        for group in (1, 4, 7):
            for full, windows in ((True, False), (False, True), (True, True)):
                needs = flashinfer_modules.Needs(head_dim, "bfloat16", group, full=full, windows=windows)
                assert set(needs.modules()) <= there


def test_the_dockerfile_calls_the_build_with_arguments_that_it_takes(repo: Path) -> None:
    (line,) = [part for part in (repo / "Dockerfile").read_text().split("&&") if "ahead_of_time" in part]
    words = line.partition(";")[0].replace("\\\n", " ").replace('"$CUDA_ARCHITECTURES"', "9.0a").split()
    assert words[:3] == ["python", "-m", "tartlet_worker.attention.ahead_of_time"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flashinfer_modules, "package", lambda: None)
        assert ahead_of_time.main(words[3:]) == 1  # nothing is installed; an unknown argument would exit
