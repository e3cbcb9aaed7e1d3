"""What the Dockerfile takes: locked versions, and files that are there and not ignored."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ROOT / "constraints"


def pins(name: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9][a-z0-9.-]*)==([^ ;\\]+)", (LOCKS / name).read_text(), re.MULTILINE))


@pytest.mark.parametrize("name", ["image-base.txt", "image-worker.txt", "image-worker-deps.txt"])
def test_images_hold_the_versions_that_are_tested(name: str) -> None:
    """Run `tools/lock.sh` after a change of dependencies."""
    tested = pins("all.txt")
    assert len(pins(name)) > 30
    assert not {p: v for p, v in pins(name).items() if tested.get(p) != v}


def test_base_has_no_torch_and_all_that_its_roles_import() -> None:
    base = pins("image-base.txt")
    assert not {p for p in base if p in {"torch", "triton"} or p.startswith(("nvidia", "cuda"))}
    assert {"kopf", "wasmtime", "grpcio", "tokenizers", "componentize-py", "hatchling"} <= set(base)


def test_worker_has_torch_and_all_of_base() -> None:
    worker = pins("image-worker.txt")
    assert {"torch", "safetensors"} <= set(worker)
    assert pins("image-base.txt").items() <= worker.items()


def test_a_torch_of_ones_own_finds_all_but_cuda() -> None:
    left_out = set(pins("image-worker.txt")) - set(pins("image-worker-deps.txt"))
    assert {"torch", "triton"} <= left_out
    assert all(p.startswith(("nvidia", "cuda", "torch", "triton")) for p in left_out)


def test_what_is_copied_is_there_and_not_ignored() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    sources = [s for line in re.findall(r"^COPY (?!--from)(.+)$", dockerfile, re.MULTILINE) for s in line.split()[:-1]]
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
    final = (ROOT / "Dockerfile").read_text().split(" AS common")[1]
    assert re.findall(r"^USER (.+)$", final, re.MULTILINE) == ["10001:10001"]
    assert 'ENTRYPOINT ["tartlet"]' in final
