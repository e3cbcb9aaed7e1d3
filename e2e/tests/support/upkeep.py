"""Evicts pods as a drain of their node does, and says when a release is whole again."""

from __future__ import annotations

import json

from e2e.cluster.kube import Kube, Object, Refused, until

_LATER = ("TooManyRequests", "disruption budget")
WHOLE_S = 90.0
"""How long a release may take to be whole after an eviction."""


def evict(kube: Kube, pod: Object) -> None:
    """Evicts a pod through the Eviction API; asks again while a PodDisruptionBudget refuses.

    Raises:
        Refused: The API server refused for another reason.
        TimeoutError: The budget refused for too long.
    """
    meta = pod["metadata"]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": meta["name"]}}
    path = f"/api/v1/namespaces/{kube.namespace}/pods/{meta['name']}/eviction"

    def evicted() -> bool:
        try:
            kube("create", "--raw", path, "-f", "-", text=json.dumps(body))
        except Refused as e:
            if any(word in str(e) for word in _LATER):
                return False
            raise
        return True

    until(evicted, f"{meta['name']} may be evicted", WHOLE_S)


def until_whole(kube: Kube, gone: Object) -> None:
    """Waits until a pod has gone and as many pods as its release wants are Ready."""
    until(lambda: _is_gone(kube, gone) and _is_whole(kube), f"{gone['metadata']['name']} is replaced", WHOLE_S)


def _is_gone(kube: Kube, pod: Object) -> bool:
    return all(p["metadata"]["uid"] != pod["metadata"]["uid"] for p in kube.items("pods"))


def _is_whole(kube: Kube) -> bool:
    """Whether every workload of a namespace has its pods, and all of them are Ready and current."""
    return all(_has_all(each) for each in kube.items("deployments,statefulsets"))


def _has_all(workload: Object) -> bool:
    wanted, status = workload["spec"]["replicas"], workload["status"]
    counts = {status.get(key, 0) for key in ("replicas", "readyReplicas", "updatedReplicas")}
    return counts == {wanted} and status.get("observedGeneration") == workload["metadata"]["generation"]
