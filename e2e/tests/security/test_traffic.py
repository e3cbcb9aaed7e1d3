"""The last test: compares every connection of the whole run with the policies of its time."""

from __future__ import annotations

from collections import Counter

import pytest

from e2e.cluster.kube import Kube, step
from e2e.cluster.network.netpol import Flow, Host, Pod
from e2e.cluster.own import configs
from e2e.cluster.provider import Cluster, Own
from e2e.tests.programs.test_answers import run
from e2e.tests.security.test_issuer import EAST, WEST
from e2e.tests.security.test_safety import namespaces
from e2e.tests.support.traffic import Traffic


def test_every_connection_made_is_allowed(kube: Kube, cluster: Cluster, traffic: Traffic, fake_pool: str) -> None:
    if not isinstance(cluster, Own):
        pytest.skip("connections are read from the kernel of this machine's own cluster")
    kube.apply_file("docs/examples/inferlet-hello.yaml")
    kube.wait("ilet/hello", "Ready")
    kube.apply(run("seen", "hello", args=["x"]))
    kube.wait("irun/seen", "Succeeded")
    traffic.listed(cluster.connections())
    policies = traffic.judged_by(namespaces(kube))
    seen = [flow for key, flow in traffic.flows.items() if _ours(flow) and key not in traffic.tried]
    with step(f"{len(seen)} connections of Tartlet's pods, of {len(traffic.flows)}, judged"):
        refused = {
            (_where(f.source), _where(f.target), f.port, *policies.refusals(f))
            for f in seen
            if not policies.allow(f) and not _tried(f)
        }
    assert refused == set()
    assert traffic.unresolved == {}
    pairs = Counter((_role(f.source), _role(f.target)) for f in seen)
    assert {
        ("runtime", "control"),
        ("worker", "control"),
        ("operator", "control"),
        ("operator", "runtime"),
        ("operator", configs.NODE_ADDRESS),
        ("operator", "kube-dns"),
    } <= set(pairs), pairs


def _role(end: Pod | Host) -> str:
    if isinstance(end, Host):
        return end.ip
    labels = end.labels
    return labels.get("app.kubernetes.io/component") or labels.get("k8s-app") or f"a pod of {end.namespace}"


def _tried(flow: Flow) -> bool:
    """Whether a test made the connection to show that certificates refuse it too: one release's worker to another."""
    ends = (flow.source, flow.target)
    return [(_role(e), e.namespace) for e in ends if isinstance(e, Pod)] == [("worker", WEST), ("control", EAST)]


def _where(end: Pod | Host) -> str:
    return _role(end) if isinstance(end, Host) else f"{_role(end)} at {end.ip} in {end.namespace}"


def _ours(flow: Flow) -> bool:
    return any(
        isinstance(end, Pod) and end.labels.get("app.kubernetes.io/name") == "tartlet"
        for end in (flow.source, flow.target)
    )
