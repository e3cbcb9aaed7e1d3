"""Modules compiled ahead of time, kept in a directory that only we write.

A file is named by the module's digest, wasmtime's version and the engine's flags, so a change of any of them
recompiles. Deserializing runs the file's code, so only files in a directory of mode 0700 that belongs to
this user are loaded; they appear by rename, so a torn one is never seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import stat
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from tartlet_common.errors.registry import (
    CompilerMemoryExceeded,
    CompileTimeout,
    CorruptModule,
    DiskFull,
    MemoryBudgetExceeded,
    SourceTooLarge,
)
from tartlet_runtime.budget.ledger import Ledger, Use
from tartlet_runtime.wasm.compiling.bounded import INVALID, run_bounded
from tartlet_runtime.wasm.compiling.engine_flags import flags_digest, wasmtime_version
from tartlet_runtime.wasm.compiling.sections import has_start

DEFAULT_MAX_WASM_BYTES = 16 << 20
DEFAULT_COMPILE_TIMEOUT_S = 60.0
MODULES_KEPT = 1024
_COMPILERS = 2  # at once

LEAST_COMPILER_BYTES = 128 << 20
"""Memory that a compiler needs at least; it gets half of what is free."""
MOST_COMPILER_BYTES = 8 << 30

_COMPILER = (
    "tartlet_runtime.wasm.compiling.compiler"  # not imported: Python complains where a module run by -m already is
)
_WASM_MAGIC = b"\0asm"
_CORE_LAYER = b"\x01\0\0\0"
_COMPONENT_LAYER = b"\x0d\0\x01\0"


class ModuleKind(StrEnum):
    """Which of the two guest interfaces a module speaks."""

    CORE = "core"
    COMPONENT = "component"


def default_cache_dir() -> Path:
    """`$TARTLET_CACHE_DIR`, else `$XDG_CACHE_HOME/tartlet`, else `~/.cache/tartlet`."""
    if own := os.environ.get("TARTLET_CACHE_DIR"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tartlet"


def kind_of(wasm: bytes) -> ModuleKind:
    """Core module or component, by its first eight bytes.

    Raises:
        CorruptModule: it is neither.
    """
    if wasm[:4] != _WASM_MAGIC:
        raise CorruptModule(detail="it does not start with \\0asm")
    if wasm[4:8] == _CORE_LAYER:
        return ModuleKind.CORE
    if wasm[4:8] == _COMPONENT_LAYER:
        return ModuleKind.COMPONENT
    raise CorruptModule(detail=f"unknown version {wasm[4:8].hex()}")


def is_component(wasm: bytes) -> bool:
    """Whether the first eight bytes are a component's."""
    return wasm[:8] == _WASM_MAGIC + _COMPONENT_LAYER


@dataclass(frozen=True, slots=True)
class Compiled:
    """A file ready to be loaded."""

    kind: ModuleKind
    digest: str  # sha-256 of the module, hex
    path: Path
    has_start: bool = False  # instantiating it runs code of its own


class AotCache:
    """Compiles modules in a child process and keeps the results."""

    def __init__(
        self,
        directory: Path | None = None,
        *,
        max_wasm_bytes: int = DEFAULT_MAX_WASM_BYTES,
        compile_timeout_s: float = DEFAULT_COMPILE_TIMEOUT_S,
        ledger: Ledger | None = None,
    ) -> None:
        """Use `directory` (created with mode 0700 if it is missing). Compilers take their memory from `ledger`."""
        self._ledger = ledger or Ledger(2 * MOST_COMPILER_BYTES * _COMPILERS)
        self.directory = (directory or default_cache_dir()) / "aot"
        self.max_wasm_bytes = max_wasm_bytes
        self.compile_timeout_s = compile_timeout_s
        self._num_compiling = 0
        self._ended = threading.Condition()  # notified when a compiler has given its memory back
        self._threads = ThreadPoolExecutor(_COMPILERS, thread_name_prefix="compile")
        self._corrupt: dict[str, str] = {}  # by digest, what the compiler says of those that can't be compiled

    def path_of(self, digest: str, kind: ModuleKind) -> Path:
        """Return where the compiled form of a module is kept."""
        return self.directory / f"{digest[:32]}-{kind}-wasmtime{wasmtime_version()}-{flags_digest()}.cwasm"

    def find(self, digest: str, kind: ModuleKind) -> Compiled | None:
        """Return the compiled form of a module (by its sha-256 in hex) if it is there and ours."""
        path = self.path_of(digest, kind)
        if not self._is_ours(path):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # in use: it goes after those that aren't
        return Compiled(kind, digest, path)

    def compile(self, wasm: bytes, *, trusted: bool = False) -> Compiled:
        """Return the compiled form of `wasm`. Blocks while it is made: call it from a thread, or `compile_async`.

        `trusted` (our own guest component) lifts the limit on size.

        Raises:
            SourceTooLarge, CorruptModule, CompileTimeout: as they say.
            MemoryBudgetExceeded, CompilerMemoryExceeded: the compiler gets too little memory.
            DiskFull: the cache can't be written.
        """
        if len(wasm) > self.max_wasm_bytes and not trusted:
            raise SourceTooLarge(size=len(wasm), limit=self.max_wasm_bytes)
        kind = kind_of(wasm)
        digest = hashlib.sha256(wasm).hexdigest()
        starts = kind is ModuleKind.CORE and has_start(wasm)
        found = self.find(digest, kind)
        if found is not None:
            return replace(found, has_start=starts)
        told = self._corrupt.get(digest)
        if told is not None:  # many may have been launched at once
            raise CorruptModule(detail=told)
        try:
            self._make_directory()
            with tempfile.TemporaryDirectory(dir=self.directory, prefix="compile-") as scratch:
                source, target = Path(scratch, "in.wasm"), Path(scratch, "out.cwasm")
                source.write_bytes(wasm)
                self._run_compiler(kind, digest, source, target)
                target.chmod(0o600)
                target.replace(self.path_of(digest, kind))
        except OSError as e:
            raise DiskFull(path=str(self.directory), detail=str(e)) from e
        self._tidy()
        return Compiled(kind, digest, self.path_of(digest, kind), starts)

    def _tidy(self) -> None:
        """Forget the core modules that nobody used for longest, and what compilers left that were killed."""
        with contextlib.suppress(OSError):  # another process tidies too
            modules = sorted(self.directory.glob(f"*-{ModuleKind.CORE}-*.cwasm"), key=lambda path: path.stat().st_mtime)
            for path in modules[:-MODULES_KEPT]:
                path.unlink()
            for scratch in self.directory.glob("compile-*"):
                if scratch.stat().st_mtime < time.time() - 2 * self.compile_timeout_s:
                    shutil.rmtree(scratch, ignore_errors=True)

    async def compile_async(self, wasm: bytes) -> Compiled:
        """`compile` on a thread: one of few of its own, since what else needs one can't wait for compilers."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self.compile, wasm)

    def close(self) -> None:
        """Compile nothing more: what waits for its turn is dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _run_compiler(self, kind: ModuleKind, digest: str, source: Path, target: Path) -> None:
        share = self._take_share()
        command = [sys.executable, "-P", "-m", _COMPILER, kind.value, str(source), str(target), str(share)]
        try:
            done = run_bounded(command, source.with_name("errors"), share, self.compile_timeout_s)
        finally:
            self._give_share(share)
        if done.lacked_memory:
            raise CompilerMemoryExceeded(limit=share)
        if done.timed_out:
            raise CompileTimeout(limit_s=self.compile_timeout_s)
        if done.status == INVALID:
            detail = done.errors.decode(errors="replace")
            if len(self._corrupt) >= MODULES_KEPT:
                self._corrupt.clear()
            self._corrupt[digest] = detail
            raise CorruptModule(detail=detail)
        if done.status != 0:  # the compiler crashed: the module's fault
            detail = f"the compiler ended with status {done.status}: {done.errors[-300:].decode(errors='replace')}"
            raise CorruptModule(detail=detail)

    def _take_share(self) -> int:
        """Take memory for a compiler. While others compile, wait for their memory; else a lack is the error."""
        with self._ended:
            while True:
                try:
                    share = self._ledger.take_share(Use.COMPILERS, LEAST_COMPILER_BYTES, MOST_COMPILER_BYTES)
                except MemoryBudgetExceeded:
                    if not self._num_compiling:
                        raise
                    self._ended.wait()
                else:
                    self._num_compiling += 1
                    return share

    def _give_share(self, share_bytes: int) -> None:
        with self._ended:
            self._ledger.give(Use.COMPILERS, share_bytes)
            self._num_compiling -= 1
            self._ended.notify_all()

    def _make_directory(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.directory.chmod(0o700)

    def _is_ours(self, path: Path) -> bool:
        try:
            folder, file = self.directory.lstat(), path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return (
            stat.S_ISDIR(folder.st_mode)
            and stat.S_ISREG(file.st_mode)
            and folder.st_uid == file.st_uid == os.geteuid()
            and not (folder.st_mode | file.st_mode) & 0o022
        )
