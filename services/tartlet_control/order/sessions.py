"""Sessions: runs that count as one program in the process table, in turn or at once. Pure: the time is an argument.

An agent's calls arrive as requests of their own, each a run. Autellix's orders need the service of the whole agent, so
the runs of a session share one account, and so do sessions with their parents. A session ends when it is told to, or
after it has been without a run for a while.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from tartlet_control.order.book import Program

IDLE_S = 900.0
"""How long a session without a run is kept."""
MOST_OF_TENANT = 8192
"""Sessions without a run that are kept of one tenant; more end the longest idle."""

Name = tuple[str, str]
"""Tenant and id of a session."""


@dataclass(frozen=True, slots=True)
class Belonging:
    """Which session a run belongs to, as its launch says."""

    session: str = ""
    parent: str = ""
    ends: bool = False
    """The session ends with this run."""


ALONE = Belonging()
"""A run that belongs to no session."""


@dataclass(slots=True, eq=False)
class _Tree:
    """A session with all sessions below it: one account."""

    account: Program
    sessions: int = 0


@dataclass(slots=True, eq=False)
class _Session:
    tree: _Tree
    runs: int = 0
    idle_since_s: float = 0.0
    ends: bool = False


class Sessions:
    """The sessions that have runs, or had one not long ago.

    Example:
        >>> sessions = Sessions()
        >>> first = sessions.join("a", Belonging("s"), lambda: Program(1), 0.0)
        >>> sessions.leave("a", "s", 1.0)
        []
        >>> sessions.join("a", Belonging("s"), lambda: Program(2), 2.0) is first
        True
        >>> sessions.join("b", Belonging("s"), lambda: Program(3), 2.0) is first
        False
    """

    def __init__(self, idle_s: float = IDLE_S, most: int = MOST_OF_TENANT) -> None:
        self._idle_s = idle_s
        self._most = most
        self._all: dict[Name, _Session] = {}
        self._idle: dict[str, OrderedDict[str, None]] = {}  # by tenant, the longest idle first

    def __len__(self) -> int:
        return len(self._all)

    def join(self, tenant: str, belonging: Belonging, make: Callable[[], Program], now: float) -> Program:
        """Return the account of a session's next run: that of its parent, its own, or one that `make` makes."""
        session = self._session(tenant, belonging.session, belonging.parent, make, now)
        session.runs += 1
        session.ends |= belonging.ends
        self._wakes(tenant, belonging.session)
        return session.tree.account

    def leave(self, tenant: str, session_id: str, now: float) -> list[Program]:
        """Note the end of a session's run; return the accounts that end with it."""
        session = self._all.get((tenant, session_id))
        if session is None:
            return []
        session.runs -= 1
        if session.runs > 0:
            return []
        session.idle_since_s = now
        idle = self._rests(tenant, session_id)
        ended = self.end(tenant, session_id) if session.ends else []
        while len(idle) > self._most:
            ended += self._remove(tenant, next(iter(idle)))
        return ended

    def end(self, tenant: str, session_id: str) -> list[Program]:
        """End a session, once its last run has ended; return the accounts that end with it now."""
        session = self._all.get((tenant, session_id))
        if session is None:
            return []
        session.ends = True
        return [] if session.runs else self._remove(tenant, session_id)

    def expire(self, now: float) -> list[Program]:
        """End the sessions that were without a run for too long; return the accounts that end with them."""
        ended: list[Program] = []
        for tenant, idle in list(self._idle.items()):
            for session_id in list(idle):
                if now - self._all[tenant, session_id].idle_since_s < self._idle_s:
                    break
                ended += self._remove(tenant, session_id)
        return ended

    def _session(self, tenant: str, session_id: str, parent: str, make: Callable[[], Program], now: float) -> _Session:
        session = self._all.get((tenant, session_id))
        if session is None:
            if parent and parent != session_id:
                tree = self._session(tenant, parent, "", make, now).tree
            else:
                tree = _Tree(make())
            tree.sessions += 1
            session = self._all[tenant, session_id] = _Session(tree, idle_since_s=now)
            self._rests(tenant, session_id)
        return session

    def _rests(self, tenant: str, session_id: str) -> OrderedDict[str, None]:
        idle = self._idle.setdefault(tenant, OrderedDict())
        idle[session_id] = None
        return idle

    def _wakes(self, tenant: str, session_id: str) -> None:
        idle = self._idle.get(tenant, OrderedDict())
        idle.pop(session_id, None)
        if not idle:
            self._idle.pop(tenant, None)

    def _remove(self, tenant: str, session_id: str) -> list[Program]:
        self._wakes(tenant, session_id)
        tree = self._all.pop((tenant, session_id)).tree
        tree.sessions -= 1
        return [] if tree.sessions else [tree.account]
