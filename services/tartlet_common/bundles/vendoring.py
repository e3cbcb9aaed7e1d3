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
from tartlet_common.bundles.requirements import Requirements, lines_of, read_requirements
from tartlet_common.config.paths import cache_dir, make_private
from tartlet_common.errors.registry import NativePackage, PackagesMissing

GUEST_PYTHON: Final = "3.14"
"""The Python of the sandbox."""
TIMEOUT_S: Final = 300.0
_PURE: Final = ("--platform", "any", "--implementation", "py", "--abi", "none")
"""What makes pip take wheels without machine code, where a package has both."""
_WHEELS: Final = ("--only-binary", ":all:")
_PIP: Final = """
import runpy, sys
def refuse(event, given):
    if event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty"):
        raise PermissionError("only wheels are taken, because building a package would run its code")
sys.addaudithook(refuse)
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
"""Runs pip without other processes. --only-binary leaves out packages that a wheel needs by their address."""
_DIGEST: Final = re.compile("[0-9a-f]{32}")
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
        PackagesMissing: a package can't be had or would have to be built, or neither pip nor uv is there.
        PermissionDenied: another user owns the place where packages are kept.
    """
    lines = lines_of(requirements.decode(errors="replace"))
    if not lines:
        return {}
    wanted = read_requirements(directory, lines)
    base = make_private(cache_dir() / "packages")
    kept = base / _digest(lines, wanted) if wanted.is_fixed else None
    if kept is not None and kept.is_dir() and not upgrade:
        os.utime(kept)
        return _read(kept)
    with tempfile.TemporaryDirectory(dir=base, prefix="coming-") as scratch:
        target = Path(scratch, "packages")
        target.mkdir()
        _install(wanted, Path(scratch), target)
        files = _read(target)
        if kept is not None:
            shutil.rmtree(kept, ignore_errors=True)
            if not kept.exists():
                target.rename(kept)
            _prune(base)
    return files


def _digest(lines: list[str], wanted: Requirements) -> str:
    """Return the name under which the packages are kept."""
    digest = hashlib.sha256(f"2 {GUEST_PYTHON}".encode())
    for line in lines:
        digest.update(b"\n" + line.encode())
    for wheel in wanted.wheels:
        digest.update(hashlib.sha256(wheel.read_bytes()).digest())
    return digest.hexdigest()[:32]


def _prune(base: Path) -> None:
    kept = [path for path in base.iterdir() if _DIGEST.fullmatch(path.name)]
    kept.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in kept[_KEPT:]:
        shutil.rmtree(path, ignore_errors=True)


def _install(wanted: Requirements, scratch: Path, target: Path) -> None:
    """Install packages in `target`. Both tools run in `scratch`, where nothing of the program's directory is."""
    own = scratch / "requirements.txt"
    own.write_text(wanted.text(), encoding="utf-8")
    which = ["--target", str(target), *_WHEELS, "--python-version", GUEST_PYTHON]
    if importlib.util.find_spec("pip") is not None:
        tool = [sys.executable, "-P", "-c", _PIP]
        options = ["--disable-pip-version-check", "--no-input", "--no-compile", *_PURE]
    else:
        uv = shutil.which("uv", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))))
        if uv is None:
            raise PackagesMissing(requirements="requirements.txt", detail="neither pip nor uv is installed")
        tool, options = [uv, "pip"], ["--python", sys.executable, "--no-config"]
    done = _run([*tool, "install", *which, *options, "-r", str(own)], scratch)
    if done.returncode == 0:
        return
    told = done.stdout + done.stderr
    missing = _NOT_FOUND.search(told)
    if missing is not None:
        probe = ["install", "--dry-run", "--no-deps", "--ignore-installed", *_WHEELS, "--no-input"]
        if _run([*tool, *probe, *wanted.options, missing[1]], scratch).returncode == 0:
            raise NativePackage(
                package=missing[1], detail=f"it has no wheel for every system and Python {GUEST_PYTHON}"
            )
    raise PackagesMissing(requirements="requirements.txt", detail="\n".join(told.strip().splitlines()[-_LAST_LINES:]))


def _run(command: list[str], scratch: Path) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, cwd=scratch, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
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
