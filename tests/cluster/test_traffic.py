"""Connections between pods whose addresses are reused."""

from __future__ import annotations

from typing import Any

from e2e.cluster.network.netpol import Flow, Host, Pod
from e2e.tests.support.traffic import GATEWAY, Traffic, _key

LINE = "tcp 6 9 ESTABLISHED src={0} dst={1} sport={2} dport=7443 src={1} dst={0} sport=7443 dport={2} [ASSURED] mark=0"


def pod(name: str, address: str) -> dict[str, Any]:
    return {
        "type": "ADDED",
        "object": {
            "metadata": {"namespace": "n", "labels": {"app": name}},
            "spec": {"containers": [{}]},
            "status": {"podIP": address},
        },
    }


def known(name: str, address: str) -> Pod:
    return Pod("n", {"app": name}, address, {}, GATEWAY)


def test_a_connection_keeps_the_pods_that_it_was_made_by() -> None:
    traffic = Traffic()
    traffic.saw("pods", pod("a", "10.88.77.4"))
    traffic.listed(LINE.format("10.88.77.4", "10.9.0.1", 1))
    traffic.saw("pods", pod("b", "10.88.77.4"))
    traffic.listed(LINE.format("10.88.77.4", "10.9.0.1", 1).replace("ESTABLISHED", "TIME_WAIT"))
    traffic.listed(LINE.format("10.88.77.4", "10.9.0.1", 2))
    assert list(traffic.flows.values()) == [
        Flow(known(name, "10.88.77.4"), Host("10.9.0.1"), 7443) for name in ("a", "b")
    ]


def test_a_pod_that_is_told_of_late_is_waited_for() -> None:
    traffic = Traffic()
    line = LINE.format(GATEWAY, "10.88.77.5", 1)
    traffic.listed(line)
    assert list(traffic.unresolved.values()) == [line]
    traffic.saw("pods", pod("late", "10.88.77.5"))
    traffic.listed(line)
    assert traffic.unresolved == {}
    assert list(traffic.flows.values()) == [Flow(Host(GATEWAY), known("late", "10.88.77.5"), 7443)]


def test_what_was_there_before_is_left_out() -> None:
    line = LINE.format("10.88.77.4", "10.9.0.1", 1)
    traffic = Traffic(before=frozenset([_key(line)]))
    traffic.saw("pods", pod("a", "10.88.77.4"))
    traffic.listed(line.replace("[ASSURED]", "").replace(" 9 ", " 7 "))
    assert (traffic.flows, traffic.unresolved) == ({}, {})


def test_policies_outlive_their_release() -> None:
    traffic = Traffic()
    policy = {"metadata": {"name": "deny", "namespace": "n"}, "spec": {"podSelector": {}, "policyTypes": ["Egress"]}}
    for kind in ("ADDED", "DELETED"):
        traffic.saw("networkpolicies", {"type": kind, "object": policy})
    assert not traffic.judged_by({"n": {}}).allow(Flow(known("a", "10.88.77.4"), Host("10.9.0.1"), 7443))


def test_policies_outlive_their_namespace() -> None:
    traffic = Traffic()
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "n"}}}
    spec = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": [here]}]}
    policy = {"metadata": {"name": "own", "namespace": "n"}, "spec": spec}
    traffic.saw("networkpolicies", {"type": "ADDED", "object": policy})
    traffic.saw("pods", pod("a", "10.88.77.4"))
    assert traffic.judged_by({}).allow(Flow(known("b", "10.88.77.5"), known("a", "10.88.77.4"), 7443))
