"""Where the proof finds its packages: the environment that it runs in, or a bundle where nothing is installed.

The bundle is a folder `.gpu` of the checkout, which git ignores: packages for one version of Python, and the cache with
the compiled Python guest (`bundle` makes it). Imports the standard library alone.
"""

from __future__ import annotations

import os
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
BUNDLE: Final = ROOT / ".gpu"
BUNDLED_PYTHON: Final = (3, 12)
NO_BUILDS: Final = "FLASHINFER_DISABLE_JIT"
"""The variable that keeps FlashInfer from compiling; a worker then takes the paths that are ready."""
SOURCES: Final = ("", "services", "gpu_worker", "operator", "protos", "inferlets/sdk/python")


def usable(bundle: Path = BUNDLE) -> bool:
    """Return whether a bundle is there for this version of Python."""
    return bundle.is_dir() and sys.version_info[:2] == BUNDLED_PYTHON


def unusable(bundle: Path = BUNDLE) -> str:
    """Return why a bundle that is there isn't used, a clause; "" if it is used, or if there is none."""
    if not bundle.is_dir() or usable(bundle):
        return ""
    wanted, here = (".".join(map(str, version)) for version in (BUNDLED_PYTHON, sys.version_info[:2]))
    return f"{bundle} isn't used: its packages are for Python {wanted}, and this is Python {here}"


def unpack(bundle: Path, target: Path) -> Path | None:
    """Unpack a bundle's archives into `target`, packages into `target/site`; return that, or None without a bundle."""
    if not usable(bundle):
        return None
    for archive in sorted(bundle.glob("*.tar.xz")):
        with tarfile.open(archive) as packed:
            packed.extractall(target, filter="data")
    return target / "site"


def environment(base: Mapping[str, str], scratch: Path, site: Path | None, *, rehearse: bool) -> dict[str, str]:
    """Return the environment of a step's process.

    Args:
        base: the runner's environment.
        scratch: a directory for caches that all steps share.
        site: of `unpack`.
        rehearse: run on the CPU, with Triton's interpreter.
    """
    places = [*([site] if site else []), *(ROOT / part for part in SOURCES)]
    inherited = [part for part in base.get("PYTHONPATH", "").split(os.pathsep) if part]
    made = dict(base) | {
        "PYTHONPATH": os.pathsep.join([*map(str, places), *inherited]),
        "PYTHONUNBUFFERED": "1",
        "PYTHONPYCACHEPREFIX": str(scratch / "pycache"),
        "TRITON_CACHE_DIR": base.get("TRITON_CACHE_DIR", str(scratch / "triton")),
        "TRITON_INTERPRET": "1" if rehearse else "0",
        "TARTLET_GPU_SCRATCH": str(scratch),
        NO_BUILDS: "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }
    if site is not None:
        made["TARTLET_CACHE_DIR"] = str(scratch / "cache")
    return made if not rehearse else made | {"OMP_NUM_THREADS": "1"}


def guests() -> dict[str, Path] | None:
    """Return the bundle's compiled guests by name, or None without a bundle."""
    found = {path.stem: path for path in sorted(BUNDLE.glob("guests/*.wasm"))}
    return found if found and usable() else None
