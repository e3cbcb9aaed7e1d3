"""Tenants' rates and concurrency. Pure: the time is an argument.

Each gateway keeps its own buckets and gets its share of a tenant's rate, so no gateway waits for another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

MINUTE_S = 60.0
COUNTED_KEPT = 10_000
"""Of how many runs of a tenant it is known that their tokens were counted."""


class Rate(NamedTuple):
    """What one gateway allows a tenant; 0: without bound."""

    requests_per_minute: float = 0.0
    tokens_per_minute: float = 0.0
    concurrency: int = 0


class Bucket:
    """Allows `per_minute` a minute on average, and as many at once after a minute of silence.

    Example:
        >>> bucket = Bucket(60, now_s=0.0)
        >>> bucket.take(60, 0.0), bucket.left(0.5), bucket.wait_s(1, 0.5)
        (None, 0.5, 0.5)
    """

    def __init__(self, per_minute: float, now_s: float) -> None:
        self.per_minute = per_minute
        self._left = per_minute
        self._at_s = now_s

    def left(self, now_s: float) -> float:
        """Return how much may be taken now; less than 0 after more was taken than was there."""
        self._left = min(self.per_minute, self._left + (now_s - self._at_s) * self.per_minute / MINUTE_S)
        self._at_s = now_s
        return self._left

    def take(self, amount: float, now_s: float) -> None:
        """Take an amount, whether or not it is there."""
        self.left(now_s)
        self._left -= amount

    def wait_s(self, amount: float, now_s: float) -> float:
        """Return after how many seconds `amount` may be taken."""
        return max(0.0, amount - self.left(now_s)) * MINUTE_S / self.per_minute

    def full_s(self, now_s: float) -> float:
        """Return after how many seconds the bucket is full."""
        return self.wait_s(self.per_minute, now_s)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request may not run now, and after how many seconds it may."""

    what: Literal["requests", "tokens", "concurrency"]
    limit: float
    wait_s: float
    programs: int = 0
    """How many launched programs count among what runs at once."""


class Tenant:
    """One tenant's buckets, and its requests and launched programs under way."""

    def __init__(self, rate: Rate, now_s: float) -> None:
        self.running = 0
        self.programs = 0  # of these
        self.refusals = 0  # because all places were taken
        self.keys: Counter[str] = Counter()  # idempotency keys of the launched programs that count
        self._counted: dict[str, None] = {}  # runs, the last ones counted behind
        self._set(rate, now_s)

    def _set(self, rate: Rate, now_s: float) -> None:
        self.rate = rate
        self.requests = Bucket(rate.requests_per_minute, now_s) if rate.requests_per_minute else None
        self.tokens = Bucket(rate.tokens_per_minute, now_s) if rate.tokens_per_minute else None

    def change(self, rate: Rate, now_s: float) -> None:
        """Go on with another rate, if it is another."""
        if rate != self.rate:
            self._set(rate, now_s)

    def admit(self, now_s: float, key: str = "") -> Refusal | None:
        """Count one more request under way, or say why it may not run.

        A launch whose idempotency key names a program that counts already needs no free place: it starts nothing.
        """
        if self.rate.concurrency and self.running >= self.rate.concurrency and key not in self.keys:
            self.refusals += 1
            return Refusal("concurrency", self.rate.concurrency, 1.0, self.programs)
        if self.tokens is not None and (wait_s := self.tokens.wait_s(1, now_s)):
            return Refusal("tokens", self.rate.tokens_per_minute, wait_s)
        if (refusal := self.ask(now_s)) is not None:
            return refusal
        self.running += 1
        return None

    def ask(self, now_s: float) -> Refusal | None:
        """Count one more request that runs nothing, or say why it isn't answered."""
        if self.requests is not None:
            if wait_s := self.requests.wait_s(1, now_s):
                return Refusal("requests", self.rate.requests_per_minute, wait_s)
            self.requests.take(1, now_s)
        return None

    def end(self, tokens: int, now_s: float) -> None:
        """Count an admitted request as ended; its tokens count now that they are known."""
        self.running -= 1
        self.count(tokens, now_s)

    def hold(self, key: str = "") -> Callable[[], None]:
        """Count a program in place of an admitted request; return what is to be called once, at the program's end.

        `key`: the program's idempotency key.

        Example:
            >>> tenant = Tenant(Rate(concurrency=1), 0.0)
            >>> tenant.admit(0.0)
            >>> release = tenant.hold("key")
            >>> refused = tenant.admit(0.0)
            >>> tenant.admit(0.0, "key"), tenant.running  # the same launch again
            (None, 2)
            >>> tenant.end(0, 0.0), release()
            (None, None)
            >>> refused, tenant.running
            (Refusal(what='concurrency', limit=1, wait_s=1.0, programs=1), 0)
        """
        self.programs += 1
        if key:
            self.keys[key] += 1

        def release() -> None:
            self.programs -= 1
            self.running -= 1
            if key:
                self.keys[key] -= 1
                if not self.keys[key]:
                    del self.keys[key]

        return release

    def is_first(self, program_id: str) -> bool:
        """Return whether a run's end is told for the first time: requests that read it again count nothing."""
        if program_id in self._counted:
            return False
        self._counted[program_id] = None
        if len(self._counted) > COUNTED_KEPT:
            del self._counted[next(iter(self._counted))]
        return True

    def count(self, tokens: int, now_s: float) -> None:
        """Count the tokens of a run whose end is known now."""
        if self.tokens is not None:
            self.tokens.take(tokens, now_s)

    def at_rest(self, now_s: float) -> bool:
        """Return whether a new tenant would be as this one: nothing runs, and its buckets are full.

        Example:
            >>> tenant = Tenant(Rate(requests_per_minute=60), 0.0)
            >>> tenant.admit(0.0), tenant.end(0, 0.0)
            (None, None)
            >>> tenant.at_rest(0.5), tenant.at_rest(1.0)
            (False, True)
        """
        buckets = (bucket for bucket in (self.requests, self.tokens) if bucket is not None)
        return not self.running and all(bucket.full_s(now_s) <= 0 for bucket in buckets)

    def headers(self, now_s: float) -> list[tuple[bytes, bytes]]:
        """Return `x-ratelimit-*` for the bounds that there are.

        Example:
            >>> Tenant(Rate(requests_per_minute=60), 0.0).headers(0.0)[0]
            (b'x-ratelimit-limit-requests', b'60')
        """
        pairs: list[tuple[bytes, bytes]] = []
        for name, bucket in ((b"requests", self.requests), (b"tokens", self.tokens)):
            if bucket is not None:
                values = (bucket.per_minute, max(0.0, bucket.left(now_s)))
                pairs += [
                    (b"x-ratelimit-%s-%s" % (kind, name), b"%d" % value)
                    for kind, value in zip((b"limit", b"remaining"), values, strict=True)
                ]
                pairs.append((b"x-ratelimit-reset-" + name, b"%.3fs" % bucket.full_s(now_s)))
        return pairs


def share(rate: Rate, replicas: int) -> Rate:
    """Return one gateway's share of a tenant's rate; each has at least one request at a time.

    Example:
        >>> share(Rate(600, 0, 5), 2)
        Rate(requests_per_minute=300.0, tokens_per_minute=0.0, concurrency=2)
    """
    at_once = max(1, rate.concurrency // replicas) if rate.concurrency else 0
    return Rate(rate.requests_per_minute / replicas, rate.tokens_per_minute / replicas, at_once)
