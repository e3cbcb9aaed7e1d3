"""What the image for CUDA holds in place of compilers: FlashInfer's modules and Triton's launcher."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tartlet_worker.attention import ahead_of_time, flashinfer_build, flashinfer_modules
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
IMAGE = """
import json, socket
from tartlet_worker.attention import flashinfer_modules as modules
from tartlet_worker.torch_engine.attention_choice import choose
def refuse(*_):
    raise AssertionError("there is no network")
socket.socket.connect = socket.getaddrinfo = refuse
found, loaded, chosen = {}, {}, set()
for needs in modules.every_need():
    lacks = modules.lacks(needs, "9.0")
    chosen.add(choose("cuda", batch_invariant=False, c_kernel=False, triton_lacks="", flashinfer_lacks=lacks).name)
    loaded[needs.head_dim] = modules.load(needs)
    found |= {name: str(spec.get_library_path()) for name, spec in modules.specs(needs).items()}
mapped = {line.split()[-1] for line in open("/proc/self/maps") if line.strip().endswith(".so")}
print("told", json.dumps({
    "found": found, "loaded": loaded, "chosen": sorted(chosen), "mapped": sorted(mapped & {*found.values()}),
}))
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


def package_with(modules: Iterable[str], root: Path) -> Path:
    """Make FlashInfer's package with libraries without functions in place of modules built ahead of time.

    They were built elsewhere, and the package takes them, as an image's does.
    """
    installed, made = Path(sys.prefix, "flashinfer", "flashinfer"), root / "flashinfer"
    assert installed.is_dir(), "run `make setup`, which brings FlashInfer's sources"
    data = made / "data"
    data.mkdir(parents=True)
    for path in (*installed.iterdir(), *(installed / "data").iterdir()):
        if path.name not in {"data", "jit", "aot"}:
            (made / path.relative_to(installed)).symlink_to(path)
    shutil.copytree(installed / "jit", made / "jit")  # it looks for modules beside itself, behind all links
    library = root / "empty.so"
    subprocess.run(["cc", "-shared", "-x", "c", os.devnull, "-o", str(library)], check=True)
    elsewhere = built_before(modules, root / "elsewhere", library)
    assert set(flashinfer_build.take(elsewhere, made, "9.0a")) == set(modules)
    return data / "aot"


def built_before(
    modules: Iterable[str], folder: Path, library: Path, *, version: str = flashinfer_modules.VERSION
) -> Path:
    """Make a folder as a build of FlashInfer's modules leaves it, with copies of one library."""
    names = list(modules)
    for name in names:
        (folder / name).mkdir(parents=True)
        shutil.copyfile(library, folder / name / f"{name}.so")
    said = {"version": version, "architectures": ["9.0a"], "modules": {name: {} for name in names}}
    (folder / flashinfer_modules.MANIFEST).write_text(json.dumps(said))
    return folder


def test_modules_that_were_built_before_are_not_compiled_and_must_fit(tmp_path: Path) -> None:
    library, root, (one, two) = tmp_path / "one.so", tmp_path / "flashinfer", ("one", "two")
    library.write_text("a library")
    given = built_before([one, two], tmp_path / "given", library)
    (given / two / f"{two}.so").unlink()
    assert flashinfer_build.take(given, root, "9.0a") == [one]
    assert (root / "data" / "aot" / one / f"{one}.so").read_text() == "a library"
    assert flashinfer_modules.built(root, one, "9.0")
    assert not flashinfer_modules.built(root, two, "9.0")

    (tmp_path / "none").mkdir()
    assert flashinfer_build.take(tmp_path / "none", root, "9.0a") == []
    other = built_before([two], tmp_path / "other", library, version="0.0.1")
    for folder, architectures in ((given, "8.9"), (other, "9.0a")):
        with pytest.raises(flashinfer_build.BuildFailed, match=folder.name):
            flashinfer_build.take(folder, root, architectures)
    assert flashinfer_modules.built(root, one, "9.0"), "what was there stays"


def test_the_tools_of_a_build_include_headers_that_old_toolkits_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("nvcc", "ninja", "c++"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("FLASHINFER_DISABLE_JIT", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    assert str(tmp_path / flashinfer_modules.CCCL) in flashinfer_modules.tools_lack(tmp_path)
    assert flashinfer_modules.tools_lack(Path(sys.prefix, "flashinfer", "flashinfer")) == ""


def test_a_worker_of_the_image_loads_all_modules_without_compiler_and_network(tmp_path: Path) -> None:
    names = {name for needs in flashinfer_modules.every_need() for name in needs.modules()}
    assert len(names) == 16
    aot = package_with(names, tmp_path / "site")
    (tmp_path / "bin").mkdir()
    env = {
        "PYTHONPATH": f"{tmp_path / 'site'}{os.pathsep}{Path(sys.prefix, 'flashinfer')}",
        "PATH": str(tmp_path / "bin"), "CUDA_HOME": str(tmp_path), "FLASHINFER_DISABLE_JIT": "1",
        "FLASHINFER_WORKSPACE_BASE": str(tmp_path), "FLASHINFER_CUDA_ARCH_LIST": "9.0a",
    }  # fmt: skip

    def said() -> dict[str, Any]:
        lines = python(IMAGE, **env).splitlines()
        return dict(json.loads(next(line for line in lines if line.startswith("told ")).removeprefix("told ")))

    told = said()
    assert told["found"] == {name: str(aot / name / f"{name}.so") for name in names}
    assert set(told["mapped"]) == set(told["found"].values())
    assert set(told["loaded"].values()) == {""}
    assert told["chosen"] == ["flashinfer"]

    lost, broken = (flashinfer_modules.seen_module(dim, "bfloat16") for dim in (128, 256))
    (aot / lost / f"{lost}.so").unlink()
    (aot / broken / f"{broken}.so").write_text("no library")
    told = said()
    assert [dim for dim, why in told["loaded"].items() if why] == ["128", "256"]
    assert f"{broken}.so: " in told["loaded"]["256"], "it names the library that can't be loaded"
    assert told["chosen"] == ["flashinfer", "triton"], "only models with such heads go without"


def test_the_dockerfile_calls_the_build_with_arguments_that_it_takes(repo: Path) -> None:
    (line,) = [part for part in (repo / "Dockerfile").read_text().split("&&") if "ahead_of_time" in part]
    words = line.partition(";")[0].replace("\\\n", " ").replace('"$CUDA_ARCHITECTURES"', "9.0a").split()
    assert words[:3] == ["python", "-m", "tartlet_worker.attention.ahead_of_time"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flashinfer_modules, "package", lambda: None)
        assert ahead_of_time.main(words[3:]) == 1  # nothing is installed; an unknown argument would exit
