"""Environments of other projects' packages: one folder for each, made once, with what its lock names by hash."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.lacking import lacking

PACKAGES = Path(__file__).parent / "packages"
KEPT = Path(sys.prefix) / "clients"
NOWHERE = "http://127.0.0.1:9"
"""A proxy that isn't there: what a client sends anywhere but to this machine fails."""


def python_of(name: str) -> Path:
    """Returns a Python that has the packages of `packages/NAME.txt`."""
    lock = PACKAGES / f"{name}.txt"

    def make(folder: Path) -> None:
        _run(sys.executable, "-m", "venv", folder)
        install: tuple[object, ...] = (
            folder / "bin/pip",
            "install",
            "--quiet",
            "--require-hashes",
            "--only-binary=:all:",
            "-r",
            lock,
        )
        if uv := shutil.which("uv", path=f"{sys.prefix}/bin:{os.environ['PATH']}"):
            install = (uv, "pip", "install", "--quiet", "--python", folder, "--require-hashes", "-r", lock)
        _run(*install)

    return _kept(name, lock.read_bytes(), make) / "bin/python"


def node_of(name: str) -> Path:
    """Returns a folder with the `node_modules` of `packages/NAME/package-lock.json`."""
    files = [PACKAGES / name / "package.json", PACKAGES / name / "package-lock.json"]

    def make(folder: Path) -> None:
        folder.mkdir()
        for file in files:
            shutil.copy(file, folder)
        _run("npm", "ci", "--silent", "--no-audit", "--no-fund", cwd=folder)

    return _kept(name, b"".join(file.read_bytes() for file in files), make)


def go_of(name: str) -> Path:
    """Returns the program that the Go module `packages/NAME` builds: minutes of two cores without Go's cache."""
    if shutil.which("go") is None:
        lacking("no go")
    files = [PACKAGES / name / each for each in ("go.mod", "go.sum", "main.go")]

    def make(folder: Path) -> None:
        folder.mkdir()
        for file in files:
            shutil.copy(file, folder)
        _run("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", name, ".", cwd=folder)

    return _kept(name, b"".join(file.read_bytes() for file in files), make) / name


def surroundings(home: Path, url: str, **more: str) -> dict[str, str]:
    """Returns the environment variables of a client's process, which reaches this machine alone."""
    nothing = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), NOWHERE)
    here = dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost")
    own = {"PATH": os.environ["PATH"], "HOME": str(home), "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "none"}
    return {**own, **nothing, **here, **more}


def ran(home: Path, url: str, *command: str | Path, timeout_s: float, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs a client to its end, which must be a good one."""
    done = subprocess.run(
        command,
        env=surroundings(home, url, **more),
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done


def _kept(name: str, lock: bytes, make: Callable[[Path], None]) -> Path:
    folder = KEPT / f"{name}-{hashlib.sha256(lock).hexdigest()[:12]}"
    KEPT.mkdir(parents=True, exist_ok=True)
    with (KEPT / f"{name}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not (folder / ".made").exists():
            shutil.rmtree(folder, ignore_errors=True)
            make(folder)
            (folder / ".made").touch()
    return folder


def _run(*command: object, cwd: Path | None = None) -> None:
    subprocess.run(list(map(str, command)), check=True, cwd=cwd, timeout=1800)
