"""Which account a run's service goes to, and what the orders learn when an account ends. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from tartlet_control.order.book import Key, Program
from tartlet_control.order.sessions import Belonging, Sessions
from tartlet_control.order.sizes import History


class Accounts:
    """Gives each run an account: one of its own, or that of its session.

    Attributes:
        sessions: The sessions that are kept.
    """

    def __init__(self, history: History, idle_s: float) -> None:
        """`history` learns from accounts that end; sessions are kept for `idle_s` seconds without a run."""
        self.sessions = Sessions(idle_s)
        self._history = history
        self._now = 0.0

    def begin(self, tenant: str, belonging: Belonging, key: Key, number: int, now: float) -> Program:
        """Return the account of a run that begins; `number` is its place in the order of arrival."""
        self._now = now

        def made() -> Program:
            return Program(number, key, arrived_s=now, last_arrival_s=now)

        return self.sessions.join(tenant, belonging, made, now) if belonging.session else made()

    def finish(self, tenant: str, session: str, account: Program, *, killed: bool) -> None:
        """Note the end of a run. A session's account ends with the session, any other with its run."""
        if session:
            self._learn(self.sessions.leave(tenant, session, self._now))
        elif not killed:
            self._learn([account])

    def end_session(self, tenant: str, session: str) -> None:
        """End a session, once its last run has ended; one that isn't there has ended."""
        self._learn(self.sessions.end(tenant, session))

    def expire(self, now: float) -> None:
        """End the sessions that have been without a run for too long."""
        self._now = now
        self._learn(self.sessions.expire(now))

    def _learn(self, accounts: Iterable[Program]) -> None:
        for account in accounts:
            if account.service_s:
                self._history.ended(account.key, account.service_s, account.tokens)
