"""A store in control's memory that a Redis keeps: a program hears of a write once the Redis has it.

Requests take effect in memory at once, in their order. An answer waits for the writes of its tenant before it, so
nobody ever sees a value that control's death could take back. Writes that were answered twice because control died
have one effect: the answers to the last writes of each program are kept with the values.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from tartlet_common.abi import Op
from tartlet_common.errors.base import TartletError
from tartlet_common.errors.registry import Overloaded
from tartlet_control.tables.shared.store import Answer, MemoryStore, Request
from tartlet_control.values.values import Change, Found, Values, ValuesAway

log = logging.getLogger("tartlet.control")

MAX_WAITING: Final = 16_384
"""Requests whose answers wait for the Redis, at most."""
MAX_WAITING_BYTES: Final = 32 << 20
"""Bytes of the values in them, at most."""
TOLD: Final = 64
"""Answers to writes that are kept for each program."""
TOLD_PROGRAMS: Final = 16_384
READ_S: Final = 30.0
"""Seconds that reading all values may take."""
LOAD_S: Final = 2.0
"""Control begins to serve after so many seconds, though the values aren't read yet."""
RETRY_S: Final = (0.1, 2.0)
"""Seconds between attempts to reach a Redis that is away: at first, and at most."""
_AT_ONCE: Final = 512
_AT_ONCE_BYTES: Final = 4 << 20
_WRITES: Final = frozenset({int(Op.STORE_SET), int(Op.STORE_DELETE)})


class _Waiting(NamedTuple):
    """An answer that waits: what was asked, how it was answered, and what is to be stored before."""

    tenant: str
    answer: Callable[[], None]
    change: Change | None


class KeptStore:
    """A store whose values outlive control."""

    def __init__(self, values: Values) -> None:
        """Begin unread. `run` does the work."""
        self._on_answered: Callable[[], None] = _nothing
        self._values = values
        self._memory = MemoryStore()
        self._memory.on_dropped = self._drop
        self._loaded = False
        self._early: deque[tuple[str, Request, Answer]] = deque()  # that came before the values were read
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._writing: dict[str, int] = {}  # answers that wait, by tenant
        self._told: dict[str, dict[int, int]] = {}  # of each program's last writes: whether the key was there
        self._work = asyncio.Event()

    def ask(self, tenant: str, request: Request, answer: Answer) -> None:
        """Execute a request. The answer comes once all writes of the tenant so far are stored."""
        if len(self._waiting) + len(self._early) >= MAX_WAITING or self._waiting_bytes > MAX_WAITING_BYTES:
            answer(0, b"", Overloaded(what="requests that wait for the store's Redis", limit=MAX_WAITING))
        elif self._loaded:
            self._run(tenant, request, answer)
        else:
            self._early.append((tenant, request, answer))
            self._waiting_bytes += len(request.value)

    def leave(self, program_id: str) -> None:
        """Forget the answers to a program's writes: nobody asks for them again."""
        if self._told.pop(program_id, None) is not None:
            self._wait(_Waiting("", _nothing, Change("", None, None, program_id, {})))

    def _run(self, tenant: str, request: Request, answer: Answer) -> None:
        told: list[tuple[int, bytes, TartletError | None]] = []
        writes = request.op in _WRITES
        before = self._told.get(request.program_id, {}).get(request.ticket) if writes and request.ticket else None
        if before is None:
            self._memory.ask(tenant, request, lambda *outcome: told.append(outcome))
        else:  # it was stored, and control died before the program had heard
            told.append((before, b"", None))
        [(found, payload, error)] = told
        change = None
        if writes and before is None and error is None and (found or not request.existing):
            value = request.value if request.op == Op.STORE_SET else None
            change = Change(tenant, request.key, value, request.program_id, self._note(request, found))
        if change is None and tenant not in self._writing:
            answer(found, payload, error)
        else:
            self._wait(_Waiting(tenant, lambda: answer(found, payload, error), change))

    def _drop(self, tenant: str, key: str) -> None:
        """Delete a value that has expired or gave way to others."""
        self._wait(_Waiting(tenant, _nothing, Change(tenant, key, None, "", {})))

    def _note(self, request: Request, found: int) -> dict[int, int]:
        """Return the answers to the last writes of a program, the one to this request included."""
        if not request.ticket:  # nobody awaits the answer, so nobody asks again
            return dict(self._told.get(request.program_id, {}))
        mine = self._told.setdefault(request.program_id, {})
        if len(self._told) > TOLD_PROGRAMS:
            del self._told[next(iter(self._told))]
        mine[request.ticket] = found
        if len(mine) > TOLD:
            del mine[next(iter(mine))]
        return dict(mine)

    def _wait(self, waiting: _Waiting) -> None:
        self._waiting.append(waiting)
        self._writing[waiting.tenant] = self._writing.get(waiting.tenant, 0) + 1
        self._waiting_bytes += waiting.change.size if waiting.change is not None else 0
        self._work.set()

    # ---- the Redis --------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Read the values, unless the Redis takes too long: then that happens later, and requests wait."""
        try:
            async with asyncio.timeout(LOAD_S):
                await self._load()
        except (ValuesAway, TimeoutError) as e:
            log.warning("the store's values can't be read yet: %s", e)
            self._work.set()

    async def _load(self) -> None:
        memory, told = MemoryStore(), dict[str, dict[int, int]]()
        left_out = 0
        async with asyncio.timeout(READ_S):
            async for found in self._values.read():
                left_out += not _take(memory, told, found)
        if left_out:
            log.error("%d of the store's values make no sense, or are too many: they are left out", left_out)
        memory.on_dropped = self._drop
        self._memory, self._told, self._loaded = memory, told, True
        early, self._early = self._early, deque()
        self._waiting_bytes = 0
        for tenant, request, answer in early:
            self._run(tenant, request, answer)
        if early:
            self._on_answered()

    async def run(self, on_answered: Callable[[], None]) -> None:
        """Store what is written until cancelled. `on_answered` is called after answers that had waited."""
        self._on_answered = on_answered
        first_s, most_s = RETRY_S
        wait_s = first_s
        while True:
            await self._work.wait()
            self._work.clear()
            try:
                if not self._loaded:
                    await self._load()
                await self._write()
                wait_s = first_s
            except (ValuesAway, TimeoutError) as e:
                if wait_s == first_s:
                    log.warning("the store's Redis is away, and programs wait for it: %s", e)
                self._work.set()
                await asyncio.sleep(wait_s)
                wait_s = min(most_s, 2 * wait_s)

    async def _write(self) -> None:
        while self._waiting:
            some, size = list[_Waiting](), 0
            for each in self._waiting:
                some.append(each)
                size += each.change.size if each.change is not None else 0
                if len(some) >= _AT_ONCE or size >= _AT_ONCE_BYTES:
                    break
            await self._values.write([each.change for each in some if each.change is not None])
            for each in some:
                self._waiting.popleft()
                self._waiting_bytes -= each.change.size if each.change is not None else 0
                self._writing[each.tenant] -= 1
                if not self._writing[each.tenant]:
                    del self._writing[each.tenant]
                each.answer()
            self._on_answered()

    async def close(self) -> None:
        """Write what waits, within a second."""
        try:
            async with asyncio.timeout(1.0):
                if self._loaded:
                    await self._write()
        except (ValuesAway, TimeoutError) as e:
            log.warning("the last writes to the store are lost: %s", e)
        await self._values.close()


def _take(memory: MemoryStore, told: dict[str, dict[int, int]], found: Found) -> bool:
    """Take an entry that was read. Returns whether it makes sense."""
    if found.told is not None:
        told[found.key] = found.told
        return True
    errors: list[TartletError | None] = []
    memory.ask(found.tenant, Request(int(Op.STORE_SET), found.key, found.value), lambda _, __, e: errors.append(e))
    return errors == [None]


def _nothing() -> None:
    """No-op callback."""
