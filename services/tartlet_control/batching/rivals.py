"""Keeps one tenant's prompts from standing between another tenant's tokens. Pure.

A step that computes thousands of tokens of prompts takes a hundred times as long as one that decodes. A tenant whose
programs read each token before they ask for the next one would have such a step between any two of its tokens, and so
far less of the device than its share. So while several tenants use an engine, a step takes only so many tokens that it
lasts at most twice as long as a small step; a command with more tokens goes alone. And a tenant that had more
than its share waits with its prompts for one that had less and that is about to come back: its commands are in flight,
or were just answered. Nobody waits for a tenant that stays away, and nothing changes while one tenant is alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from math import inf
from typing import Final

from tartlet_control.batching.return_times import patience_s
from tartlet_control.batching.step_times import StepTimes
from tartlet_control.tables.programs import CommandQueue

RECENT_S: Final = 1.0
"""A tenant counts as present for so long after its last step was sent."""
MOST_S: Final = 0.02
"""Nobody waits longer for a tenant that was answered, nor longer than a small step takes."""
UNKNOWN_S: Final = 0.005
"""How soon a queue is back of which nothing is known."""
LEAST_TOKENS: Final = 8
TIMES: Final = 2.0
"""How long a shared step may take, over one of `LEAST_TOKENS`."""


class Rivals:
    """Knows the tenants that use one engine at the same time, and which of them are about to come back."""

    __slots__ = ("_back", "_seen")

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}  # when a step of the tenant was sent
        self._back: dict[str, float] = {}  # until when to expect the tenant

    def sent(self, tenants: Iterable[str], now: float) -> None:
        """Note the tenants in a step."""
        seen = self._seen
        for tenant in tenants:
            seen[tenant] = now
        if len(seen) > 1:
            for tenant in [tenant for tenant, sent_s in seen.items() if sent_s < now - RECENT_S]:
                del seen[tenant]
                self._back.pop(tenant, None)

    def answered(self, queues: Iterable[CommandQueue], small_s: float, now: float) -> None:
        """Note that a step of these queues was answered: their programs may be about to come back.

        Args:
            queues: of the step.
            small_s: how long a small step takes; nobody waits for a program that usually takes longer to come back.
            now: in seconds.
        """
        if len(self._seen) < 2:
            return
        for queue in queues:
            if queue.program.live and not queue.pending:
                usual_s = UNKNOWN_S if queue.returns_s == inf else queue.returns_s
                wait_s = patience_s(usual_s)
                if wait_s <= min(MOST_S, small_s):
                    tenant = queue.program.tenant
                    self._back[tenant] = max(now + wait_s, self._back.get(tenant, 0.0))

    def several(self, waiting: Collection[str]) -> bool:
        """Return whether more than one tenant uses the engine; `waiting` are those whose commands wait."""
        return len(self._seen) > 1 or any(tenant not in self._seen for tenant in waiting)

    def awaited(
        self, waiting: Collection[str], in_flight: Collection[str], time_of: Callable[[str], float], now: float
    ) -> float:
        """Return until when the tenants that wait should wait for one that is behind them.

        Args:
            waiting: tenants with commands that wait; at least one.
            in_flight: tenants with commands in flight.
            time_of: returns a tenant's virtual time.
            now: in seconds.

        Returns:
            A time; infinity: until a step is answered; 0: go on.
        """
        ahead = min(map(time_of, waiting))
        until = 0.0
        for tenant in self._seen:
            if tenant not in waiting and time_of(tenant) < ahead:
                until = max(until, inf if tenant in in_flight else self._back.get(tenant, 0.0))
        return until if until > now else 0.0


def shared_tokens(times: StepTimes, most: int) -> int:
    """Return how many tokens a step of several tenants computes at most; a command with more goes alone.

    Example:
        >>> times = StepTimes()
        >>> for tokens in (1, 10, 100, 1000):
        ...     times.add(tokens, 0.01 + 0.0005 * tokens)
        >>> shared_tokens(times, 4096)
        32
    """
    bound_s, tokens = TIMES * times.least(LEAST_TOKENS), LEAST_TOKENS
    while tokens < most and times.predict(2 * tokens) <= bound_s:
        tokens *= 2
    return min(tokens, most)
