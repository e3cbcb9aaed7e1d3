"""Set-up of the runtime: `python -m tartlet_runtime.guests.build`.

Builds the generic Python guest with componentize-py, compiles it ahead of time, and compiles the C shim where there is
a compiler. Each result is kept in the cache directory under a digest of what it was made from, so a second run has
nothing to do and takes no time.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tartlet_common.errors.registry import CorruptModule, StartFailed, TartletError
from tartlet_runtime.wasm.boundary.shim import build_shim, find_compiler, library_path
from tartlet_runtime.wasm.compiling.aot import AotCache, Compiled, ModuleKind, default_cache_dir

WORLD = "inferlet"
_GUEST_COMPILE_TIMEOUT_S = 600.0
_COMPONENTIZE_TIMEOUT_S = 600.0
_GUESTS_KEPT = 4
_USED_LATELY_S = 3 * 86_400.0

Say = Callable[[str], None]


def _inferlets_dir() -> Path:
    """Return where `guest/` and `wit/` are: in a checkout, or inside an installed package."""
    for candidate in (Path(__file__).parents[3] / "inferlets", Path(__file__).parents[1] / "_inferlets"):
        if (candidate / "guest" / "app.py").exists():
            return candidate
    raise StartFailed(role="runtime", detail="the sources of the Python guest are not installed")


def _sdk_dir() -> Path:
    """Return the import root that holds the SDK, `inferlet`."""
    spec = importlib.util.find_spec("inferlet")
    if spec is None or spec.origin is None:
        raise StartFailed(role="runtime", detail="the SDK, `inferlet`, is not installed")
    return Path(spec.origin).parents[1]


def guest_sources() -> list[Path]:
    """Return every file that the Python guest is made from."""
    root = _inferlets_dir()
    return [
        *sorted((root / "wit").glob("*.wit")),
        *sorted((root / "guest").glob("*.py")),
        *sorted((_sdk_dir() / "inferlet").rglob("*.py")),
    ]


def guest_digest() -> str:
    """Digest of the guest's sources and of the tool that builds it."""
    digest = hashlib.sha256()
    try:
        digest.update(version("componentize-py").encode())
    except PackageNotFoundError:
        digest.update(b"unknown")
    for path in guest_sources():
        content = path.read_bytes()
        digest.update(f"{path.parent.name}/{path.name}:{len(content)}:".encode() + content)
    return digest.hexdigest()[:24]


def python_guest(cache_dir: Path | None = None) -> Compiled:
    """Return the Python guest, compiled, from the cache.

    Raises:
        StartFailed: it has not been built, or its sources have changed since.
    """
    cache_dir = cache_dir or default_cache_dir()
    note = _note_path(cache_dir)
    if note.exists():
        digest = json.loads(note.read_text())["sha256"]
        compiled = AotCache(cache_dir).find(digest, ModuleKind.COMPONENT)
        if compiled is not None:
            with suppress(OSError):  # the cache may be read-only
                note.touch()
            return compiled
    detail = "the Python guest is not built: run `make setup` or `python -m tartlet_runtime.guests.build`"
    raise StartFailed(role="runtime", detail=detail)


def earlier_guest(digest: str, cache_dir: Path | None = None) -> Compiled | None:
    """Return an earlier release's Python guest from the cache, if it has one that this release's host can run."""
    cache_dir = cache_dir or default_cache_dir()
    for note in (cache_dir / "guest").glob("python-*.json"):
        told = json.loads(note.read_text())
        if told["sha256"] == digest and told.get("world") == world_digest():
            return AotCache(cache_dir).find(digest, ModuleKind.COMPONENT)
    return None


def world_digest() -> str:
    """Digest of the interface between the guest and its host."""
    return hashlib.sha256(
        b"".join(p.read_bytes() for p in sorted((_inferlets_dir() / "wit").glob("*.wit")))
    ).hexdigest()


def build(cache_dir: Path | None = None, *, say: Say = print) -> Compiled:
    """Build whatever is missing; the Python guest. Safe to run from several processes at once.

    Raises:
        StartFailed: componentize-py is missing or fails.
        CompileTimeout, DiskFull: as they say.
    """
    cache_dir = cache_dir or default_cache_dir()
    with _locked(cache_dir):
        _build_shim(cache_dir, say)
        try:
            compiled = python_guest(cache_dir)
        except StartFailed:
            compiled = _build_guest(cache_dir, say)
        else:
            say(f"python guest: up to date ({compiled.digest[:12]})")
    return compiled


def _build_shim(cache_dir: Path, say: Say) -> None:
    if library_path(cache_dir).exists():
        say("shim: up to date")
    elif find_compiler() is None:
        say("shim: no C compiler, ctypes does its work (host calls of core-Wasm guests are slower)")
    else:
        with _timed("shim: compiling", "shim: compiled", say):
            built = build_shim(cache_dir)
        if built is None:
            say("shim: could not be compiled, ctypes does its work")


def _build_guest(cache_dir: Path, say: Say) -> Compiled:
    note = _note_path(cache_dir)
    component = note.with_suffix(".wasm")
    if not component.exists():  # kept over an upgrade of wasmtime, so that journals still name the same component
        with _timed("python guest: building the component", "python guest: component built", say):
            _componentize(component)
    wasm = component.read_bytes()
    aot = AotCache(cache_dir, compile_timeout_s=_GUEST_COMPILE_TIMEOUT_S)
    with _timed("python guest: compiling ahead of time", "python guest: compiled ahead of time", say):
        compiled = aot.compile(wasm, trusted=True)
    if compiled.kind is not ModuleKind.COMPONENT:
        raise CorruptModule(detail="componentize-py made no component")
    draft = note.with_suffix(".part")
    draft.write_text(json.dumps({"sha256": compiled.digest, "bytes": len(wasm), "world": world_digest()}))
    draft.replace(note)
    _prune(cache_dir)
    return compiled


def _prune(cache_dir: Path) -> None:
    """Drop guests, 65 MB each, that no runtime has started with for days, except the few that were used last.

    Checkouts of different SDKs share one cache, so a guest that one of them uses must outlive the others' builds.
    """
    used = {path: path.stat().st_mtime for path in (cache_dir / "guest").glob("python-*.json")}
    oldest = time.time() - _USED_LATELY_S
    aot = AotCache(cache_dir)
    for note in sorted(used, key=lambda path: used[path], reverse=True)[_GUESTS_KEPT:]:
        if used[note] > oldest:
            continue
        digest = json.loads(note.read_text())["sha256"]
        for path in (note, note.with_suffix(".wasm"), aot.path_of(digest, ModuleKind.COMPONENT)):
            path.unlink(missing_ok=True)


def _componentize(target: Path) -> None:
    tool = Path(sys.executable).with_name("componentize-py")
    root = _inferlets_dir()
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        draft = Path(scratch, "guest.wasm")
        command = [
            str(tool) if tool.exists() else "componentize-py",
            *("-d", str(root / "wit"), "-w", WORLD),
            *("componentize", "app", "-p", str(root / "guest"), "-p", str(_sdk_dir()), "-o", str(draft)),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPONENTIZE_TIMEOUT_S, check=False)
        except FileNotFoundError as e:
            raise StartFailed(role="runtime", detail="componentize-py is missing: install tartlet[build]") from e
        except subprocess.TimeoutExpired as e:
            raise StartFailed(role="runtime", detail=f"componentize-py took over {_COMPONENTIZE_TIMEOUT_S} s") from e
        if done.returncode != 0:
            raise StartFailed(role="runtime", detail=f"componentize-py failed:\n{(done.stdout + done.stderr)[-4000:]}")
        draft.replace(target)


def _note_path(cache_dir: Path) -> Path:
    return cache_dir / "guest" / f"python-{guest_digest()}.json"


@contextmanager
def _locked(cache_dir: Path) -> Iterator[None]:
    (cache_dir / "guest").mkdir(mode=0o700, parents=True, exist_ok=True)
    with (cache_dir / "guest" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _timed(begins: str, done: str, say: Say) -> Iterator[None]:
    say(f"{begins} ...")
    begin = time.monotonic()
    yield
    say(f"{done} in {time.monotonic() - begin:.1f} s")


def main(argv: list[str] | None = None) -> int:
    """Run the set-up; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tartlet_runtime.guests.build", description=__doc__, allow_abbrev=False
    )
    parser.add_argument(
        "--cache-dir", type=Path, default=None, help="default: $TARTLET_CACHE_DIR, else ~/.cache/tartlet"
    )
    options = parser.parse_args(argv)
    try:
        build(options.cache_dir, say=_print)
    except TartletError as e:
        _print(f"error: {e.explained}")
        return 1
    return 0


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
