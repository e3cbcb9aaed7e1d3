"""Code of Python programs that run again and again: a guest of its own compiles each source once, beside what runs.

A guest of the sandbox begins with no program in it, so it compiles its source anew: 1 ms for each KB. A source that is
launched a second time is compiled for the launches after that. Its code is a function of the component, the source and
the file's name alone, because the guest that compiles a source runs nothing of it and sees nothing else.

Each tenant has code of its own: nobody learns what another tenant runs, and who launches much drives out its own code.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from tartlet_common.errors.registry import MemoryBudgetExceeded, TartletError
from tartlet_runtime.abi.guest import Phase
from tartlet_runtime.abi.limits import PYTHON_BYTES
from tartlet_runtime.budget.growth import START_BYTES
from tartlet_runtime.budget.ledger import Ledger, Use
from tartlet_runtime.wasm import GuestClock, GuestLimits, GuestRandom, LinkedModule, QuietHooks, WasmHost

log = logging.getLogger(__name__)

SOURCE_BYTES: Final = 1 << 20
"""The largest source, or archive, that is compiled for later runs."""
CODE_BYTES: Final = 2 << 20
"""The longest code of one source that is kept."""
KEPT_BYTES: Final = 16 << 20
"""All code that is kept."""
_KEPT: Final = 256  # sources of which anything is known
_GROWTH_BYTES: Final = 64 << 20  # of the guest that compiles
_FREE_OF_COMPILING: Final = 2  # compiling leaves one part in so many of the memory free
_CPU_S: Final = 2.0
_COMPILE = f"""
import sys
from inferlet._running.guest import compiled
def main():
    code = compiled(sys.argv[1], sys.argv[2])
    return code if len(code) <= {CODE_BYTES} else ""
"""


class Key(NamedTuple):
    """What code belongs to."""

    tenant: str
    digest: str
    """Of the source."""
    filename: str
    """It is in the code."""


class CompiledSources:
    """The code of sources, the last used ones."""

    def __init__(self, host: WasmHost, module: LinkedModule, ledger: Ledger, *, kept_bytes: int = KEPT_BYTES) -> None:
        """Compile in guests of `module`, the Python component. Memory is taken from `ledger`."""
        self._host = host
        self._module = module
        self._ledger = ledger
        self._most_bytes = kept_bytes
        self._known: OrderedDict[Key, bytes | None] = OrderedDict()  # None: launched once; b"": it compiles itself
        self._held: dict[str, tuple[int, int]] = {}  # bytes and sources, by tenant
        self._bytes = 0
        self._at_work: asyncio.Task[None] | None = None

    def code(self, key: Key, text: Callable[[], str]) -> bytes:
        """Return the code of a source that is launched, as `Fiber.start` takes it; b"": the guest must compile it.

        Args:
            key: whose source it is, its SHA-256 in hex, and its name in tracebacks.
            text: returns the source as the guest takes it.
        """
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
        if len(text) > SOURCE_BYTES:
            self._keep(key, b"")
            return
        needed = START_BYTES + _GROWTH_BYTES
        if self._ledger.free_bytes - needed < self._ledger.bound_bytes // _FREE_OF_COMPILING:
            return  # launches come first; a later one asks again
        try:
            self._ledger.take(Use.COMPILERS, needed)
        except MemoryBudgetExceeded:
            return
        try:
            self._keep(key, await self._compiled(text, key.filename))
        except TartletError:  # there is no place for a guest
            return
        finally:
            self._ledger.give(Use.COMPILERS, needed)

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
        """Keep code, if the memory has room for it, in place of what the tenants with most code used longest ago."""
        self._forget(key)
        size = len(code or b"")
        if size > min(CODE_BYTES, self._most_bytes) or (size and not self._make_room(key.tenant, size)):
            code = b""
        if not self._make_room(key.tenant, 0):
            return
        size = len(code or b"")
        try:
            self._ledger.take(Use.SOURCES, size)
        except MemoryBudgetExceeded:
            return  # a later launch asks again
        self._known[key] = code
        self._count(key.tenant, size, 1)

    def _make_room(self, tenant: str, size: int) -> bool:
        """Return whether there is room for a source of a tenant, whose code has `size` bytes.

        What takes most gives way: a tenant of whose sources the fewest bytes are kept loses none to another tenant.
        """
        while self._bytes + size > self._most_bytes or len(self._known) >= _KEPT:
            at = 0 if self._bytes + size > self._most_bytes else 1  # bytes or sources
            held = {of: amounts[at] for of, amounts in self._held.items()}
            held[tenant] = held.get(tenant, 0) + (size, 1)[at]
            most = max(held.values())
            first = next((key for key in self._known if held[key.tenant] == most and self._takes(key, at)), None)
            if first is None:
                return False
            self._forget(first)
        return True

    def _takes(self, key: Key, at: int) -> bool:
        return at == 1 or bool(self._known[key])

    def _forget(self, key: Key) -> None:
        if key not in self._known:
            return
        size = len(self._known.pop(key) or b"")
        self._count(key.tenant, -size, -1)
        self._ledger.give(Use.SOURCES, size)

    def _count(self, tenant: str, size: int, sources: int) -> None:
        held, known = self._held.get(tenant, (0, 0))
        self._bytes += size
        self._held[tenant] = held + size, known + sources
        if not known + sources:
            del self._held[tenant]
