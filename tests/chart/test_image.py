"""The Dockerfile's inputs: locked versions that exist, and files that exist and aren't ignored."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ROOT / "constraints"
DOCKERFILE = (ROOT / "Dockerfile").read_text()
USER = "10001:10001"

EXTRAS = ("control", "runtime", "operator", "build")
VARIANTS = {
    "image-base": EXTRAS,
    "image-worker": (*EXTRAS, "worker"),
    "image-worker-cuda": (*EXTRAS, "worker", "flashinfer"),
}
"""Each lock and the extras in it."""

UNREACHABLE = re.compile(r"error sending request|dns error|Failed to fetch|not found in the cache", re.IGNORECASE)


def pins(name: str) -> set[tuple[str, str]]:
    return versions((LOCKS / f"{name}.txt").read_text())


def packages(name: str) -> set[str]:
    return {package for package, _ in pins(name)}


def versions(text: str) -> set[tuple[str, str]]:
    """Yield packages and versions; a lock for several Pythons may hold two versions of one package."""
    return set(re.findall(r"^([a-z0-9][a-z0-9.-]*)==([^ ;\\\n]+)", text, re.MULTILINE))


def uv(*arguments: str) -> str:
    """Return uv's output; skip the test without uv or a package index."""
    found = next(filter(None, (shutil.which("uv", path=str(Path(sys.executable).parent)), shutil.which("uv"))), None)
    if found is None:
        pytest.skip("uv is not installed")
    done = subprocess.run([found, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0 and UNREACHABLE.search(done.stderr):
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def stages() -> dict[str, str]:
    """Return the Dockerfile's stages by name."""
    found = re.split(r"^FROM \S+ AS (\S+)\n", DOCKERFILE, flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True))


@pytest.mark.parametrize("name", [*VARIANTS, "image-worker-deps"])
def test_images_hold_the_versions_that_are_tested(name: str) -> None:
    """Run `tools/lock.sh` after a change of dependencies."""
    assert len(pins(name)) > 30
    untested = packages(name) - packages("all")
    assert untested == set() or name == "image-worker-cuda"  # FlashInfer and what it needs want a GPU
    assert {(p, v) for p, v in pins(name) if p not in untested} <= pins("all")


@pytest.mark.parametrize("python", ["3.11", "3.12"])
@pytest.mark.parametrize("name", VARIANTS)
def test_what_is_locked_can_be_installed(name: str, python: str, tmp_path: Path) -> None:
    """The lock matches pyproject.toml, and each version has a wheel for Linux with a locked hash."""
    lock = str(LOCKS / f"{name}.txt")
    platform = ("--python-version", python, "--python-platform", "x86_64-manylinux_2_31", "--only-binary", ":all:")
    extras = [word for extra in VARIANTS[name] for word in ("--extra", extra)]
    asked = versions(uv("pip", "compile", "pyproject.toml", *extras, "-c", lock, *platform, "--quiet", "--no-header"))
    assert len(asked) > 30
    assert asked <= pins(name)
    install = uv("pip", "install", "--dry-run", "--target", str(tmp_path), *platform, "--require-hashes", "-r", lock)
    would = versions(re.sub(r"^ \+ ", "", install, flags=re.MULTILINE))
    assert asked <= would <= pins(name)


def test_base_has_no_torch_but_everything_that_its_roles_import() -> None:
    base = packages("image-base")
    assert not {p for p in base if p in {"torch", "triton"} or p.startswith(("nvidia", "cuda", "flashinfer"))}
    assert {"kopf", "wasmtime", "grpcio", "tokenizers", "componentize-py", "hatchling"} <= base


def test_worker_has_torch_and_all_of_base() -> None:
    assert {"torch", "safetensors"} <= packages("image-worker")
    assert "flashinfer-python" not in packages("image-worker")
    assert pins("image-base") <= pins("image-worker")


def test_worker_for_cuda_has_flashinfer_and_the_same_torch() -> None:
    assert "flashinfer-python" in packages("image-worker-cuda")
    assert pins("image-worker") <= pins("image-worker-cuda")


def test_the_compiler_of_kernels_is_of_the_release_of_cudas_headers() -> None:
    (release,) = {version for package, version in pins("image-worker-cuda") if package == "nvidia-cuda-runtime"}
    assert {version for _, version in pins("image-nvcc")} == {release}
    assert packages("image-nvcc") == {"nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm"}


def test_a_custom_torch_finds_everything_but_cuda() -> None:
    left_out = packages("image-worker") - packages("image-worker-deps")
    assert {"torch", "triton"} <= left_out
    assert all(p.startswith(("nvidia", "cuda", "torch", "triton")) for p in left_out)


@pytest.mark.parametrize(
    ("arguments", "installed"),
    [
        ({}, ["image-worker"]),
        ({"ACCELERATOR": "cuda"}, ["image-worker-cuda"]),
        ({"TORCH_WHEEL": "https://example.org/torch.whl"}, ["--no-deps https://example.org/torch.whl", "worker-deps"]),
        ({"ACCELERATOR": "cuda", "TORCH_WHEEL": "x.whl"}, None),
        ({"ACCELERATOR": "rocm"}, None),
    ],
)
def test_a_build_argument_chooses_the_workers_packages(
    arguments: dict[str, str], installed: list[str] | None, tmp_path: Path
) -> None:
    (script,) = re.findall(r"^RUN ((?:.*\\\n)*.*)$", stages()["worker-builder"], re.MULTILINE)
    defaults = dict(re.findall(r'^ARG (\w+)="?(\w*)"?$', stages()["worker-builder"], re.MULTILINE))
    (tmp_path / "pip").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "pip").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **defaults, **arguments}
    done = subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (installed is not None), done
    if installed is not None:
        said = done.stdout.splitlines()
        assert len(said) == len(installed)
        assert all(wanted in line for wanted, line in zip(installed, said, strict=True)), said
        assert "--require-hashes" in said[-1]
        assert said[-1].endswith(f"{installed[-1]}.txt")
    else:
        assert "ACCELERATOR" in done.stderr


def test_the_linter_passes() -> None:
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if hadolint is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([hadolint, str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_no_registry_is_named() -> None:
    """Whoever builds the image chooses mirrors and private registries."""
    instructions = "\n".join(line for line in DOCKERFILE.splitlines() if not line.startswith("#"))
    assert not re.search(r"://|--(?:extra-)?index|--find-links", instructions)
    bases = set(re.findall(r"^FROM (\S+)", instructions, re.MULTILINE))
    assert bases == {"${BASE}", "${PREVIOUS}", "builder", "worker-builder", "scratch", "common"}
    assert re.findall(r"^ARG BASE=(\S+)$", instructions, re.MULTILINE) == ["python:3.11-slim"]


def test_what_is_copied_is_there_and_not_ignored() -> None:
    sources = [s for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE) for s in line.split()[:-1]]
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert len(sources) > 8
    for source in sources:
        assert (ROOT / source).exists(), source
        assert source.rstrip("/") in allowed, source
    package = re.search(r"only-include = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL)
    assert package is not None
    for root in re.findall(r'"([^"/]+)/', package.group(1)):  # the wheel is built from what was copied
        assert root in {s.split("/")[0] for s in sources}, root


def test_images_run_as_a_user_that_kubernetes_sees_is_not_root() -> None:
    found = stages()
    assert set(found) == {"previous", "builder", "worker-builder", "modules", "kernels", "common", "worker", "base"}
    assert re.findall(r"^USER (.+)$", found["common"], re.MULTILINE) == [USER]
    assert 'ENTRYPOINT ["tartlet"]' in found["common"]
    assert not re.search(r"^(?:USER|ENTRYPOINT)", found["worker"] + found["base"], re.MULTILINE)
    assert re.findall(r"^FROM (\S+) AS (?:worker|base)$", DOCKERFILE, re.MULTILINE) == ["common", "common"]
    for name in ("builder", "worker-builder", "kernels"):
        assert re.findall(r"^USER (.+)$", found[name], re.MULTILINE)[-1] == USER
