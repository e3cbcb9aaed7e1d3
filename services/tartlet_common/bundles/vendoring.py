"""Fetches the packages of a requirements.txt: pure-Python wheels, by pip or by uv, kept in the cache directory."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tartlet_common.bundles.layout import NATIVE_SUFFIXES
from tartlet_common.config.paths import cache_dir
from tartlet_common.errors.registry import NativePackage, PackagesMissing

GUEST_PYTHON: Final = "3.14"
"""The Python of the sandbox."""
TIMEOUT_S: Final = 300.0
_PURE: Final = ("--platform", "any", "--implementation", "py", "--abi", "none")
"""What makes pip take wheels without machine code, where a package has both."""
_NOT_FOUND: Final = re.compile(r"No matching distribution found for (\S+)")
_LEFT_OUT: Final = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"})  # of *.dist-info: of this machine
_LAST_LINES: Final = 8
_KEPT: Final = 32


def vendored(directory: Path, requirements: bytes, *, upgrade: bool = False) -> dict[str, bytes]:
    """Return the files of the packages that a requirements.txt lists, and of those that they need.

    What was resolved once is taken from the cache for the same text, and for the same wheels where it names files.

    Args:
        directory: of the requirements.txt; relative paths in it begin there.
        requirements: the file's text.
        upgrade: whether the packages are resolved again.

    Raises:
        NativePackage: a package has no wheel without machine code.
        PackagesMissing: a package can't be had, or neither pip nor uv is there.
    """
    lines = [line.strip() for line in requirements.decode(errors="replace").splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if not lines:
        return {}
    kept = _place(directory, lines)
    if kept is not None and kept.is_dir() and not upgrade:
        os.utime(kept)
        return _read(kept)
    base = cache_dir() / "packages"
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=base, prefix="coming-") as scratch:
        target = Path(scratch, "packages")
        target.mkdir()
        _install(directory, target)
        files = _read(target)
        if kept is not None:
            shutil.rmtree(kept, ignore_errors=True)
            if not kept.exists():
                target.rename(kept)
            _prune(base)
    return files


def _place(directory: Path, lines: list[str]) -> Path | None:
    """Return where the packages are kept; None if the text names places whose content may change."""
    digest = hashlib.sha256(f"1 {GUEST_PYTHON}".encode())
    for line in lines:
        if line.startswith("-") or "://" in line:
            return None
        digest.update(b"\n" + line.encode())
        path = directory / line.partition(" ")[0]
        if path.is_file():
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        elif path.is_dir():
            return None
    return cache_dir() / "packages" / digest.hexdigest()[:32]


def _prune(base: Path) -> None:
    kept = sorted(base.glob("[0-9a-f]*"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in kept[_KEPT:]:
        shutil.rmtree(path, ignore_errors=True)


def _install(directory: Path, target: Path) -> None:
    if importlib.util.find_spec("pip") is not None:
        tool = [
            sys.executable,
            "-P",
            "-m",
            "pip",
        ]  # -P: else a file of the program may stand in for one of pip's modules
        options = ["--disable-pip-version-check", "--no-input", "--no-compile", *_PURE]
    else:
        uv = shutil.which("uv", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))))
        if uv is None:
            raise PackagesMissing(requirements="requirements.txt", detail="neither pip nor uv is installed")
        tool, options = [uv, "pip"], []
    which = ["--target", str(target), "--only-binary", ":all:", "--python-version", GUEST_PYTHON]
    done = _run([*tool, "install", *which, *options, "-r", "requirements.txt"], directory)
    if done.returncode == 0:
        return
    told = done.stdout + done.stderr
    missing = _NOT_FOUND.search(told)
    if missing is not None:
        probe = ["install", "--dry-run", "--no-deps", "--ignore-installed", "--only-binary", ":all:", "--no-input"]
        if _run([*tool, *probe, *_indexes(directory), missing[1]], directory).returncode == 0:
            raise NativePackage(
                package=missing[1], detail=f"it has no wheel for every system and Python {GUEST_PYTHON}"
            )
    raise PackagesMissing(requirements="requirements.txt", detail="\n".join(told.strip().splitlines()[-_LAST_LINES:]))


def _indexes(directory: Path) -> list[str]:
    """Return the options of a requirements.txt that say where packages are."""
    lines = (directory / "requirements.txt").read_text(encoding="utf-8", errors="replace").splitlines()
    options = ("--no-index", "--find-links", "-f", "--index", "-i", "--extra-index")
    return [word for line in lines if line.strip().startswith(options) for word in line.split()]


def _run(command: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise PackagesMissing(requirements="requirements.txt", detail=str(e)) from e


def _read(target: Path) -> dict[str, bytes]:
    """Return the files of the packages, without what only this machine needs."""
    files: dict[str, bytes] = {}
    for path in sorted(target.rglob("*")):
        name = path.relative_to(target).as_posix()
        top, _, rest = name.partition("/")
        if not path.is_file() or "__pycache__" in name or top == "bin" or top.startswith("."):
            continue
        if top.endswith(".dist-info") and rest in _LEFT_OUT:
            continue
        if name.endswith(NATIVE_SUFFIXES):
            raise NativePackage(package=top, detail=f"it has the file {name}")
        files[name] = path.read_bytes()
    return files
