"""The release's operators, and ways to take them away."""

from __future__ import annotations

from contextlib import suppress

from e2e.cluster.kube import Kube, Object
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
