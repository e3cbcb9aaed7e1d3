"""Kills parts of a release, and the API server, at random times."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from e2e.cluster.kube import Kube, Object, Refused, until
from e2e.cluster.provider import Own
from e2e.tests.support.operators import kill, operators

API_SERVER: Final = "API server"
DECK: Final = ("operator",) * 3 + ("engine",) * 2 + ("control", "runtime", API_SERVER)
"""The parts that are killed in each round; each round has another random order."""

AWAY_S: Final = 60.0
_AWAY: Final = (
    *("refused", "EOF", "reset by peer", "connection lost", "timed out waiting for the server", "TLS handshake"),
    *("not ready", "unavailable", "Unavailable", "unable to return a response", "unable to handle the request"),
    *("watch closed", "doesn't have a resource type", "no matches for kind", "could not find the requested resource"),
)
"""Messages of kubectl about an API server that is away or still starting."""


class Patient(Kube):
    """A `Kube` that repeats requests while the API server is away."""

    def __call__(self, *arguments: str, text: str | None = None, timeout_s: float = 120) -> str:
        """Runs kubectl and returns its output.

        Raises:
            Refused: kubectl failed.
        """
        end = time.monotonic() + AWAY_S
        while True:
            try:
                return super().__call__(*arguments, text=text, timeout_s=timeout_s)
            except Refused as e:
                if time.monotonic() > end or not any(word in str(e) for word in _AWAY):
                    raise
            time.sleep(0.5)


@dataclass(slots=True)
class Toll:
    """How often each part was killed."""

    deck: tuple[str, ...]
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def complete(self) -> bool:
        """Whether every part was killed."""
        return all(self.counts[what] >= often for what, often in Counter(self.deck).items())

    @property
    def programs(self) -> int:
        """Returns how often programs may have been lost."""
        return self.counts["engine"] + self.counts["control"] + self.counts["runtime"]


@contextmanager
def havoc(kube: Kube, pool: str, seed: int, apart_s: tuple[float, float]) -> Iterator[Toll]:
    """Kills a part of the release or an engine of a pool, again and again, during a block.

    Args:
        kube: the release's namespace.
        pool: The pool whose engines are killed.
        seed: Seed of all random choices.
        apart_s: Least and most time between two kills, in seconds.
    """
    choice, over = random.Random(seed), threading.Event()  # noqa: S311 - the seed is told
    toll = Toll(DECK if isinstance(kube.cluster, Own) else tuple(what for what in DECK if what != API_SERVER))
    failures: list[Exception] = []

    def work() -> None:
        cards: list[str] = []
        while not over.wait(choice.uniform(*apart_s)):
            cards = cards or choice.sample(toll.deck, len(toll.deck))
            try:
                if _ended(kube, cards[-1], pool, choice):
                    toll.counts[cards.pop()] += 1
            except (Refused, OSError, TimeoutError) as e:
                failures.append(e)

    thread = threading.Thread(target=work, name="havoc")
    thread.start()
    try:
        yield toll
    finally:
        over.set()
        thread.join()
    if failures:
        raise failures[0]


def answers(kube: Kube) -> bool:
    """Whether the API server answers."""
    try:
        return bool(kube("get", "--raw", "/readyz"))
    except Refused:
        return False


def _ended(kube: Kube, what: str, pool: str, choice: random.Random) -> bool:
    """Kills one of these; returns False if there is none."""
    if what == API_SERVER:
        assert isinstance(kube.cluster, Own)
        kube.cluster.kill("apiserver")
        plain = Kube(kube.cluster, kube.namespace)
        until(lambda: answers(plain), "the API server answers", AWAY_S)
        return True
    there = [pod for pod in _pods(kube, what, pool) if "podIP" in pod.get("status", {})]
    if there:  # a pod that ends before its address is known leaves connections that no pod explains
        kill(kube, choice.choice(there))
    return bool(there)


def _pods(kube: Kube, what: str, pool: str) -> list[Object]:
    if what == "operator":
        return operators(kube)
    label = f"tartlet.dev/pool={pool}" if what == "engine" else f"app.kubernetes.io/component={what}"
    return kube.items("pods", "-l", label)
