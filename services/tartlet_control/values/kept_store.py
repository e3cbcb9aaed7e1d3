"""A store in control's memory that a Redis keeps: a program hears of a write once the Redis has it.

Requests take effect in memory at once, in their order. An answer waits for the writes of its tenant before it, so
nobody ever sees a value that control's death could take back. `keeper.Keeper` reads and writes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from tartlet_common.abi import Op
from tartlet_common.errors.base import TartletError
from tartlet_common.errors.registry import Overloaded
from tartlet_control.tables.shared.store import Answer, MemoryStore, Request
from tartlet_control.values.keeper import Keeper, nothing
from tartlet_control.values.told import Note
from tartlet_control.values.values import Change, Found, Values

log = logging.getLogger("tartlet.control")

TOLD: Final = 64
"""Answers to writes that are kept for each program."""
_AT_ONCE: Final = 512
_WRITES: Final = frozenset({int(Op.STORE_SET), int(Op.STORE_DELETE)})


class KeptStore:
    """A store whose values outlive control."""

    def __init__(self, values: Values) -> None:
        """Begin unread."""
        self.keeper = Keeper(values, "the store's values", most_told=TOLD, at_once=_AT_ONCE)
        self.keeper.kept = self
        self._memory = self._reading = MemoryStore()
        self._memory.on_dropped = self._drop
        self._left_out = 0
        self._writing: dict[str, int] = {}  # answers that wait, by tenant

    def ask(self, tenant: str, request: Request, answer: Answer) -> None:
        """Execute a request. The answer comes once all writes of the tenant so far are stored."""
        try:
            self.keeper.room.check(tenant)
        except Overloaded as e:
            answer(0, b"", e)
        else:
            work = partial(self._run, tenant, request, answer)
            self.keeper.when_read(work, tenant, len(request.value))

    def leave(self, program_id: str) -> None:
        """Forget the answers to a program's writes: nobody asks for them again."""
        self.keeper.when_read_or_claimed(partial(self.keeper.forget, program_id))

    def returned(self, program_id: str) -> None:
        """Note that a run has come back, which may make calls again that were answered before control died."""
        self.keeper.when_read(partial(self.keeper.returned, program_id), None)

    def _run(self, tenant: str, request: Request, answer: Answer) -> None:
        told: list[tuple[int, bytes, TartletError | None]] = []
        writes = request.op in _WRITES
        before = self.keeper.answers.find(request.program_id, request.ticket) if writes else None
        if before is None:
            self._memory.ask(tenant, request, lambda *outcome: told.append(outcome))
        else:  # it was stored, and control died before the program had heard
            told.append((before, b"", None))
        [(found, payload, error)] = told
        changes, notes = list[Change](), list[Note]()
        if writes and before is None and error is None and (found or not request.existing):
            value = request.value if request.op == Op.STORE_SET else None
            changes.append(Change(tenant, request.key, value))
            if request.ticket:
                notes.append(self.keeper.answers.add(request.program_id, request.ticket, found))
        if not changes and tenant not in self._writing:
            answer(found, payload, error)
        else:
            self._wait(tenant, changes, partial(answer, found, payload, error), notes)

    def _drop(self, tenant: str, key: str) -> None:
        """Delete a value that has expired or gave way to others."""
        self._wait(tenant, [Change(tenant, key, None)], nothing)

    def _wait(self, tenant: str, changes: list[Change], then: Callable[[], None], notes: Sequence[Note] = ()) -> None:
        self._writing[tenant] = self._writing.get(tenant, 0) + 1

        def stored() -> None:
            self._writing[tenant] -= 1
            if not self._writing[tenant]:
                del self._writing[tenant]
            then()

        self.keeper.write_later(tenant, changes, stored, notes)

    # ---- what was kept (`keeper.Kept`) ------------------------------------------------------------------------------

    def begin(self) -> None:
        """Forget what was read: reading begins."""
        self._reading, self._left_out = MemoryStore(), 0

    def take(self, found: Found) -> None:
        """Take a value that was read, if it makes sense."""
        errors: list[TartletError | None] = []
        request = Request(int(Op.STORE_SET), found.key, found.value)
        self._reading.ask(found.tenant, request, lambda _, __, error: errors.append(error))
        self._left_out += errors != [None]

    def read_all(self) -> None:
        """Use the values that were read."""
        if self._left_out:
            log.error("%d of the store's values make no sense, or are too many: they are left out", self._left_out)
        self._memory = self._reading
        self._memory.on_dropped = self._drop

    def claim(self) -> None:
        """No-op: values belong to tenants."""
