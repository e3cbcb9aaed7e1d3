"""Searches for programs that no runtime has announced to this control, because their runtimes died before it began.

Nobody but their store of journals knows such programs. One runtime of each store lists its journals, once for each
incarnation of control: later losses are seen by control itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tartlet_control.tables.programs import RuntimeSession


@dataclass(frozen=True, slots=True)
class Found:
    """A journal whose program has not ended (`FoundJournal` of control.proto)."""

    program_id: str
    epoch: int
    tenant: str = ""
    idempotency_key: str = ""
    model: str = ""
    pool: str = ""
    name: str = ""


class Searches:
    """The stores of journals that were listed, or are being listed."""

    def __init__(self) -> None:
        """Begin with no store listed."""
        self._asked: dict[str, RuntimeSession | None] = {}  # by the store's name; None: the list is complete

    def ask(self, sessions: Iterable[RuntimeSession]) -> None:
        """Ask one connected runtime of each store that nobody lists."""
        for session in sessions:
            if session.journals and session.gone_since is None and session.journals not in self._asked:
                self._asked[session.journals] = session
                session.outbox.notices.find_journals = True

    def unlisted(self, sessions: Iterable[RuntimeSession]) -> bool:
        """Return whether a connected runtime's store isn't listed yet."""
        return any(s.gone_since is None and self._asked.get(s.journals, s) is not None for s in sessions if s.journals)

    def done(self, session: RuntimeSession) -> None:
        """Note that a runtime has listed its store."""
        if session.journals:
            self._asked[session.journals] = None

    def leave(self, session: RuntimeSession) -> None:
        """Note that a runtime won't finish its list."""
        if session.journals and self._asked.get(session.journals) is session:
            del self._asked[session.journals]
