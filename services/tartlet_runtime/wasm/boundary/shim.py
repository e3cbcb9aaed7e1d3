"""Build shim.c where there is a compiler, and find the result."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

from tartlet_runtime.wasm.boundary.ctypes_boundary import CtypesBoundary
from tartlet_runtime.wasm.boundary.shim_boundary import ShimBoundary

Boundary = CtypesBoundary | ShimBoundary

SOURCE = Path(__file__).with_name("shim.c")
PARTS = (SOURCE, SOURCE.with_name("shim_polls.h"))
_BUILD_TIMEOUT_S = 60
_log = logging.getLogger(__name__)


def library_path(cache_dir: Path) -> Path:
    """Return where the compiled shim is kept: named by its sources' digest and the machine."""
    digest = hashlib.sha256(b"".join(part.read_bytes() for part in PARTS)).hexdigest()[:16]
    return cache_dir / "shim" / f"shim-{digest}-{platform.machine()}.so"


def find_compiler() -> list[str] | None:
    """Return the C compiler's command: `$CC`, else the first of cc, gcc, clang."""
    if configured := os.environ.get("CC"):
        return shlex.split(configured)
    for name in ("cc", "gcc", "clang"):
        if path := shutil.which(name):
            return [path]
    return None


def build_shim(cache_dir: Path) -> Path | None:
    """Compile the shim unless it is there; None if there is no compiler or it fails (its message is logged)."""
    target = library_path(cache_dir)
    if target.exists():
        return target
    compiler = find_compiler()
    if compiler is None:
        return None
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    target.parent.chmod(0o700)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        built = Path(scratch, "shim.so")
        command = [*compiler, "-O2", "-shared", "-fPIC", "-o", str(built), str(SOURCE), "-ldl", "-lpthread"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as e:
            _log.warning("the C shim could not be built, ctypes does its work: %s", e)
            return None
        if done.returncode != 0:
            _log.warning("the C shim could not be built, ctypes does its work:\n%s", done.stderr[-2000:])
            return None
        built.replace(target)
    return target


def open_boundary(choice: str, cache_dir: Path) -> Boundary:
    """Return the boundary that `choice` names: `shim`, `ctypes`, or `auto` (the shim if it has been built).

    Raises:
        FileNotFoundError: `shim` was asked for and is not built.
    """
    path = library_path(cache_dir)
    if choice == "ctypes" or (choice == "auto" and not _is_ours(path)):
        return CtypesBoundary()
    if not _is_ours(path):
        raise FileNotFoundError(path)
    return ShimBoundary(str(path))


def _is_ours(path: Path) -> bool:
    try:
        folder, file = path.parent.lstat(), path.lstat()
    except FileNotFoundError:
        return False
    return folder.st_uid == file.st_uid == os.geteuid() and stat.S_ISREG(file.st_mode) and not folder.st_mode & 0o022
