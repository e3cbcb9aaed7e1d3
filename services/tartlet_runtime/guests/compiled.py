"""Code of Python programs that run again and again: a guest of its own compiles each source once, beside what runs.

A guest of the sandbox begins with no program in it, so it compiles its source anew: 1 ms for each KB. A source that is
launched a second time is compiled for the launches after that. Its code is a function of the component, the source and
the file's name alone, because the guest that compiles a source runs nothing of it and sees nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from tartlet_common.errors.registry import MemoryBudgetExceeded, TartletError
from tartlet_runtime.abi.guest import Phase
from tartlet_runtime.abi.limits import PYTHON_BYTES
from tartlet_runtime.budget.growth import START_BYTES
from tartlet_runtime.budget.ledger import Ledger, Use
from tartlet_runtime.wasm import GuestClock, GuestLimits, GuestRandom, LinkedModule, QuietHooks, WasmHost

log = logging.getLogger(__name__)

SOURCE_BYTES: Final = 1 << 20
"""The largest source, or archive, that is compiled for later runs."""
KEPT_BYTES: Final = 16 << 20
"""All code that is kept."""
_KEPT: Final = 256  # sources of which anything is known
_GROWTH_BYTES: Final = 64 << 20  # of the guest that compiles
_CPU_S: Final = 2.0
_COMPILE = """
import sys
from inferlet._running.guest import compiled
def main():
    return compiled(sys.argv[1], sys.argv[2])
"""

Key = tuple[str, str]
"""Digest of a source, and the file's name, which is in the code."""


class CompiledSources:
    """The code of sources, the last used ones."""

    def __init__(self, host: WasmHost, module: LinkedModule, ledger: Ledger, *, kept_bytes: int = KEPT_BYTES) -> None:
        """Compile in guests of `module`, the Python component. Memory is taken from `ledger`."""
        self._host = host
        self._module = module
        self._ledger = ledger
        self._most_bytes = kept_bytes
        self._known: OrderedDict[Key, bytes | None] = OrderedDict()  # None: launched once; b"": it compiles itself
        self._bytes = 0
        self._at_work: asyncio.Task[None] | None = None

    def code(self, digest: str, filename: str, text: Callable[[], str]) -> bytes:
        """Return the code of a source that is launched, as `Fiber.start` takes it; b"": the guest must compile it.

        Args:
            digest: SHA-256 of the source, hex.
            filename: its name in tracebacks.
            text: returns the source as the guest takes it.
        """
        key = (digest, filename)
        if key not in self._known:
            self._keep(key, None)
            return b""
        self._known.move_to_end(key)
        code = self._known[key]
        if code is None and self._at_work is None:
            self._at_work = asyncio.get_running_loop().create_task(self._compile(key, text()))
            self._at_work.add_done_callback(self._done)
        return code or b""

    def close(self) -> None:
        """Compile nothing more."""
        if self._at_work is not None:
            self._at_work.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._at_work = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a source can't be compiled ahead", exc_info=error)

    async def _compile(self, key: Key, text: str) -> None:
        try:
            self._ledger.take(Use.COMPILERS, START_BYTES + _GROWTH_BYTES)
        except MemoryBudgetExceeded:
            return  # a later launch asks again
        try:
            self._keep(key, await self._compiled(text, key[1]) if len(text) <= SOURCE_BYTES else b"")
        except TartletError:  # there is no place for a guest
            return
        finally:
            self._ledger.give(Use.COMPILERS, START_BYTES + _GROWTH_BYTES)

    async def _compiled(self, text: str, filename: str) -> bytes:
        """Return the code; b"" if every run must compile the text itself."""
        guest = self._host.create(
            self._module,
            hooks=QuietHooks(),
            limits=GuestLimits(memory_bytes=PYTHON_BYTES + _GROWTH_BYTES, cpu_burst_s=_CPU_S),
            clock=GuestClock(0),
            random=GuestRandom(b"compile"),
        )
        try:
            guest.start(_COMPILE, "compile.py", [text, filename])
            while guest.step() is Phase.READY:  # noqa: ASYNC110 - it computes; the loop gets its turns between
                await asyncio.sleep(0)
        finally:
            guest.kill()
        outcome = guest.outcome
        return outcome.text.encode() if outcome is not None and outcome.error is None else b""

    def _keep(self, key: Key, code: bytes | None) -> None:
        """Keep code, if the memory has room for it, in place of what was used longest ago."""
        size = len(code or b"")
        if size > self._most_bytes:  # it would drive out all others
            code, size = b"", 0
        self._forget(key)
        while self._known and (len(self._known) >= _KEPT or self._bytes + size > self._most_bytes):
            self._forget(next(iter(self._known)))
        try:
            self._ledger.take(Use.SOURCES, size)
        except MemoryBudgetExceeded:
            return  # a later launch asks again
        self._known[key] = code
        self._bytes += size

    def _forget(self, key: Key) -> None:
        size = len(self._known.pop(key, None) or b"")
        self._bytes -= size
        self._ledger.give(Use.SOURCES, size)
