"""The release's operators, and ways to take them away."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from e2e.cluster.kube import Kube, Object, Refused
from e2e.cluster.provider import Own
from e2e.tests.conftest import RELEASE

LEASE_S = 15.0
"""The operators' setting `lease_duration_s`: within this time of a leader's end another leads."""

LOOK_S = 1.0
"""How late the tests may see it."""


def operators(kube: Kube) -> list[Object]:
    """The pods that are there and not about to go."""
    pods = kube.items("pods", "-l", "app.kubernetes.io/component=operator")
    return [p for p in pods if "deletionTimestamp" not in p["metadata"]]


def holder(kube: Kube) -> str:
    """The pod that holds the Lease; empty if none does."""
    held: str = kube.get(f"lease/{RELEASE}-operator")["spec"].get("holderIdentity", "")
    return held


def leader(kube: Kube) -> Object:
    """The pod that leads."""
    held = holder(kube)
    return next(p for p in operators(kube) if p["metadata"]["name"] == held)


def says_it_leads(kube: Kube, pod: Object) -> bool:
    """What an operator's own metrics say."""
    name = pod["metadata"]["name"]
    text = kube("get", "--raw", f"/api/v1/namespaces/{kube.namespace}/pods/{name}:8080/proxy/metrics")
    samples = [line for line in text.splitlines() if line.startswith("tartlet_operator_leading")]
    return any(float(line.split()[-1]) == 1.0 for line in samples)


def container(pod: Object) -> str:
    """The id of a pod's container."""
    found: str = pod["status"]["containerStatuses"][0].get("containerID", "")
    return found


def kill(kube: Kube, pod: Object) -> None:
    """Ends a pod's process without a word, and takes the pod away."""
    if isinstance(kube.cluster, Own) and container(pod):
        with suppress(Exception):  # it may have ended by itself, or not have begun
            kube.cluster.signal_container(container(pod), "SIGKILL")
    kube("delete", "pod", pod["metadata"]["name"], "--grace-period=0", "--force", "--ignore-not-found")


@dataclass(slots=True)
class Toll:
    """How many operators were killed."""

    kills: int = 0


@contextmanager
def killed_at_random(kube: Kube, seed: int, apart_s: tuple[float, float]) -> Iterator[Toll]:
    """While a block runs, a random operator is killed after every random time between these."""
    choice, over, toll = random.Random(seed), threading.Event(), Toll()  # noqa: S311 - the seed is told
    failures: list[Exception] = []

    def work() -> None:
        while not over.wait(choice.uniform(*apart_s)):
            try:
                there = operators(kube)
                if there:
                    kill(kube, choice.choice(there))
                    toll.kills += 1
            except (Refused, OSError) as e:
                failures.append(e)

    thread = threading.Thread(target=work, name="killer")
    thread.start()
    try:
        yield toll
    finally:
        over.set()
        thread.join()
    if failures:
        raise failures[0]
