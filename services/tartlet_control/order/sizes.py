"""`Sizes`: a small histogram of how much service runs of a program needed, and the Gittins index that follows from it.

The Gittins index of a program that has had service `a` is the best rate at which it could end:
max over b > a of P(S <= b | S > a) / E[min(S, b) - a | S > a], for the size S of its kind. Serving the largest index
first minimises the mean response time where sizes are known only as a distribution (Gittins 1979; Aalto, Ayesta and
Righter 2009).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np

from tartlet_control.order.book import Key, Program

LEAST_S: Final = 1e-3
"""Upper end of the first bucket, in seconds of device time."""
RATIO: Final = 1.25
"""Upper end of a bucket over that of the bucket before."""
BUCKETS: Final = 80
MOST_RUNS: Final = 512.0
"""Weight of the runs that a histogram remembers. At more, all counts are halved, so that old runs fade."""
POPULATION_RUNS: Final = 2.0
"""How many runs of its own the runs of all programs are worth to a program."""
PRIOR_RUNS: Final = 0.5
"""How many runs the prior is worth. The prior's index falls with age: with no run known, less attained goes first."""
USUAL_TOKEN_S: Final = 1e-3
"""Device time of a token while no program has computed any."""
REFRESH: Final = 0.05
"""Share of new runs after which an index is computed again."""

EDGES: Final = np.concatenate(([0.0], LEAST_S * RATIO ** np.arange(BUCKETS)))
"""The buckets' bounds in seconds, float64 `[BUCKETS + 1]`."""
_MIDDLES: Final = np.where(EDGES[:-1] > 0, np.sqrt(EDGES[:-1] * EDGES[1:]), EDGES[1:] / 2)
_AGES: Final[list[float]] = EDGES[:-1].tolist()
_AHEAD: Final = np.tri(BUCKETS, dtype=bool).T
_REST: Final = np.where(_AHEAD, _MIDDLES - EDGES[:-1, None], 0.0)  # what sizes of each bucket need beyond each age
_CHANGES: Final = 64
_PRIOR: Final = np.full(BUCKETS, PRIOR_RUNS / BUCKETS)  # equal mass in each: as likely twice as long as half as long


class Sizes:
    """The sizes of the runs of one kind of program, in buckets of device time."""

    __slots__ = ("counts", "seen", "service_s", "tokens", "total")

    def __init__(self) -> None:
        self.counts = np.zeros(BUCKETS)
        self.service_s = 0.0  # of the runs whose tokens are known
        self.tokens = 0.0
        self.total = 0.0
        self.seen = 0

    def add(self, service_s: float, tokens: int = 0) -> None:
        """Note a run that ended after so much service, in which it computed so many tokens; 0: that isn't known."""
        if tokens:
            self.service_s += service_s
            self.tokens += tokens
        self.counts[min(BUCKETS - 1, max(0, int(np.searchsorted(EDGES, service_s)) - 1))] += 1.0
        self.total += 1.0
        self.seen += 1
        if self.total > MOST_RUNS:
            self.counts /= 2
            self.total /= 2
            self.service_s /= 2
            self.tokens /= 2


def gittins(masses: np.ndarray) -> list[float]:
    """Return the index at the lower bound of each bucket, in 1/s, for sizes with these masses (float64 `[BUCKETS]`)."""
    of_bucket = np.where(_AHEAD, masses, 0.0)  # a row for each age, with the sizes that are longer
    ended = np.cumsum(of_bucket, axis=1)
    served = np.cumsum(of_bucket * _REST, axis=1) + _REST * (ended[:, -1:] - ended)
    best = np.divide(ended, served, out=np.zeros_like(ended), where=served > 0).max(axis=1)
    none = ended[:, -1] <= 0  # nothing is known to need more: as before
    return [float(best[at]) for at in np.maximum.accumulate(np.where(none, 0, np.arange(BUCKETS)))]


@dataclass(frozen=True, slots=True)
class _Known:
    """What was computed from the runs of one kind of program, or of all."""

    runs: int
    index: list[float]
    token_s: float
    """Device time of a token; 0 if no run told its tokens."""


class History:
    """What past runs tell of the programs that run now, for each (tenant, name, digest) and for all together."""

    __slots__ = ("_changes", "_keys", "_known", "_most", "_of_tenant", "_population", "on_change", "version")

    def __init__(self, most_keys: int = 4096) -> None:
        """`most_keys`: kinds of programs to remember.

        Of more kinds, those of the tenant with the most are forgotten, the one that ended longest ago first.
        """
        self._keys: dict[Key, Sizes] = {}
        self._of_tenant: dict[str, dict[Key, None]] = {}  # the kinds in the same order
        self._changes: deque[Key | None] = deque(maxlen=_CHANGES)  # of the last versions
        self._population = Sizes()
        self._known: dict[Key | None, _Known] = {}  # None: of the runs of all programs
        self._most = most_keys
        self.version = 0
        """Grows whenever an index or a token's time that was told before may be another now."""
        self.on_change: Callable[[Key | None], object] = _nothing
        """Called with a kind of program that has ended a run or was forgotten; None: all programs together."""

    def known(self, key: Key | None) -> Sizes | None:
        """Return what past runs used of a kind of program (None: of all together); None if none is known."""
        if key is None:
            return self._population if self._population.total else None
        return self._keys.get(key)

    @property
    def is_empty(self) -> bool:
        """Whether no run of any program is known."""
        return not self._population.total and not self._keys

    @property
    def keys(self) -> Iterable[Key]:
        """The kinds of programs that are known, the one that ended longest ago first."""
        return self._keys.keys()

    def put(self, key: Key | None, sizes: Sizes) -> None:
        """Take what an earlier control knew of a kind of program (None: of all together), unless some is known here."""
        if key is None:
            if not self._population.total:
                self._population = sizes
                self._forget(None)
        elif key not in self._keys and len(self._keys) < self._most:
            if self.is_empty:
                self._note(None)
            self._hold(key, sizes)
            self._forget(key)

    def changed_since(self, version: int) -> Collection[Key | None] | None:
        """Return the kinds of programs whose index may be another than at a version.

        None among them, or in their place: that of any program may be.
        """
        count = self.version - version
        return set(islice(reversed(self._changes), count)) if count <= len(self._changes) else None

    def _forget(self, of: Key | None) -> None:
        """Let what was computed of a kind of program, or of all, be computed again."""
        self._known.pop(of, None)
        self._note(of)

    def _note(self, of: Key | None) -> None:
        self.version += 1
        self._changes.append(of)

    def _hold(self, key: Key, sizes: Sizes) -> None:
        """Put a kind of program behind all others."""
        self._keys.pop(key, None)
        self._keys[key] = sizes
        of = self._of_tenant.setdefault(key[0], {})
        of.pop(key, None)
        of[key] = None

    def _drop_one(self, tenant: str) -> None:
        """Forget a kind of program of a tenant, or of the tenant with the most if this one is within its share."""
        tenants = self._of_tenant
        if len(tenants[tenant]) * len(tenants) <= self._most:
            tenant = max(tenants, key=lambda each: len(tenants[each]))
        oldest = next(iter(tenants[tenant] if len(tenants[tenant]) > 1 else self._keys))
        of = tenants[oldest[0]]
        del self._keys[oldest], of[oldest]
        if not of:
            del tenants[oldest[0]]
        self._forget(oldest)
        self.on_change(oldest)

    def ended(self, key: Key, service_s: float, tokens: int = 0) -> None:
        """Note a run of a program that ended after so much service and so many tokens (0: that isn't known)."""
        if self.is_empty:
            self._note(None)
        sizes = self._keys.get(key)
        if sizes is None:
            sizes = Sizes()
            self._note(key)  # its programs were judged by the runs of all
        self._hold(key, sizes)
        sizes.add(service_s, tokens)
        self._population.add(service_s, tokens)
        if len(self._keys) > self._most:
            self._drop_one(key[0])
        for of, runs in ((key, sizes.seen), (None, self._population.seen)):
            known = self._known.get(of)
            if known is not None and runs > known.runs * (1 + REFRESH):
                self._forget(of)
        self.on_change(key)
        self.on_change(None)

    def index(self, key: Key, service_s: float) -> float:
        """Return the Gittins index, in 1/s, of a program that has had so much service."""
        return _at(self._of(key).index, service_s)

    def token_s(self, program: Program) -> float:
        """Return the device time of a program's token: as in past runs of the program, else its own, else of all."""
        if program.key not in self._keys and program.tokens and program.service_s:
            return program.service_s / program.tokens
        return self._of(program.key).token_s or USUAL_TOKEN_S

    def _of(self, key: Key) -> _Known:
        sizes = self._keys.get(key)
        of = None if sizes is None else key
        known = self._known.get(of)
        if known is None:
            runs = self._population if sizes is None else sizes
            token_s = runs.service_s / runs.tokens if runs.tokens else 0.0
            known = self._known[of] = _Known(runs.seen, gittins(self._masses(sizes)), token_s)
        return known

    def _masses(self, sizes: Sizes | None) -> np.ndarray:
        masses = _PRIOR.copy()
        population = self._population
        if population.total:
            masses += population.counts * (min(POPULATION_RUNS, population.total) / population.total)
        if sizes is not None:
            masses += sizes.counts
        return masses


def _nothing(_: Key | None) -> None:
    return


def _at(index: list[float], service_s: float) -> float:
    """Interpolate the index between the bounds of the bucket that a service lies in."""
    bucket = bisect_right(_AGES, service_s) - 1
    if bucket + 1 >= BUCKETS:
        return index[-1]
    low, high = _AGES[bucket], _AGES[bucket + 1]
    share: float = (service_s - low) / (high - low)
    return index[bucket] + share * (index[bucket + 1] - index[bucket])
