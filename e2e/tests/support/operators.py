"""Finds and kills the operators of a release."""

from __future__ import annotations

from contextlib import suppress

from e2e.cluster.kube import Kube, Object
from e2e.cluster.provider import Own
from e2e.tests.conftest import RELEASE

LEASE_S = 15.0
"""The operators' setting `lease_duration_s`: another operator leads within this time of a leader's end."""

LOOK_S = 1.0
"""How late the tests may see the new leader, in seconds."""


def operators(kube: Kube) -> list[Object]:
    """Returns the operators' pods that aren't being deleted."""
    pods = kube.items("pods", "-l", "app.kubernetes.io/component=operator")
    return [p for p in pods if "deletionTimestamp" not in p["metadata"]]


def holder(kube: Kube) -> str:
    """Returns the name of the pod that holds the Lease, or an empty string."""
    held: str = kube.get(f"lease/{RELEASE}-operator")["spec"].get("holderIdentity", "")
    return held


def leader(kube: Kube) -> Object:
    """Waits for a leading pod and returns its name."""
    held = holder(kube)
    return next(p for p in operators(kube) if p["metadata"]["name"] == held)


def says_it_leads(kube: Kube, pod: Object) -> bool:
    """Returns a value of an operator's metrics."""
    name = pod["metadata"]["name"]
    text = kube("get", "--raw", f"/api/v1/namespaces/{kube.namespace}/pods/{name}:8080/proxy/metrics")
    samples = [line for line in text.splitlines() if line.startswith("tartlet_operator_leading")]
    return any(float(line.split()[-1]) == 1.0 for line in samples)


def container(pod: Object) -> str:
    """Returns the id of a pod's container."""
    found: str = pod["status"]["containerStatuses"][0].get("containerID", "")
    return found


def kill(kube: Kube, pod: Object) -> None:
    """Kills a pod's process and deletes the pod."""
    if isinstance(kube.cluster, Own) and container(pod):
        with suppress(Exception):  # the process may have ended by itself, or not have started
            kube.cluster.signal_container(container(pod), "SIGKILL")
    kube("delete", "pod", pod["metadata"]["name"], "--grace-period=0", "--force", "--ignore-not-found")
