"""Flows from the output of conntrack."""

from __future__ import annotations

from typing import Any

from e2e.cluster.network.conntrack import Connection, flows, parse, pods_by_address
from e2e.cluster.network.netpol import Flow, Host, Pod

LISTING = """\
tcp 6 9 ESTABLISHED src=10.88.77.4 dst=10.96.0.1 sport=5 dport=443 src=10.99.0.1 dst=10.88.77.4 sport=6443 dport=5
tcp 6 6 CLOSE src=10.88.77.1 dst=10.88.77.4 sport=7 dport=8080 src=10.88.77.4 dst=10.88.77.1 sport=8080 dport=7
udp 17 20 src=10.88.77.4 dst=10.96.0.10 sport=33000 dport=53 src=10.88.77.2 dst=10.88.77.4 sport=53 dport=33000 mark=0
tcp 6 60 SYN src=10.88.77.4 dst=10.88.77.9 sport=1 dport=3 [UNREPLIED] src=10.88.77.9 dst=10.88.77.4 sport=3 dport=1
icmp 1 20 src=10.88.77.4 dst=10.88.77.2 type=8 code=0 id=1 src=10.88.77.2 dst=10.88.77.4 type=0 code=0 id=1 mark=0
conntrack v1.4.7 (conntrack-tools): 5 flow entries have been shown.
"""


def pod(name: str, address: str, **spec: Any) -> dict[str, Any]:
    container = {"ports": [{"name": "health", "containerPort": 8080}, {"containerPort": 9}]}
    return {
        "metadata": {"namespace": "n", "labels": {"app": name}},
        "spec": {"containers": [container], **spec},
        "status": {"podIP": address},
    }


def test_services_are_resolved_and_the_unanswered_left_out() -> None:
    assert list(parse(LISTING)) == [
        Connection("10.88.77.4", "10.99.0.1", 6443, "TCP"),
        Connection("10.88.77.1", "10.88.77.4", 8080, "TCP"),
        Connection("10.88.77.4", "10.88.77.2", 53, "UDP"),
    ]


def test_ends_are_pods_or_hosts() -> None:
    host = pod("host", "10.99.0.1", hostNetwork=True)
    pods = pods_by_address([pod("a", "10.88.77.4"), host, {**pod("new", ""), "status": {}}], "10.88.77.1")
    a = Pod("n", {"app": "a"}, "10.88.77.4", {"health": 8080}, "10.88.77.1")
    assert pods == {"10.88.77.4": a}
    assert list(flows(parse(LISTING), pods)) == [
        Flow(Host("10.88.77.1"), a, 8080),
        Flow(a, Host("10.88.77.2"), 53, "UDP"),
        Flow(a, Host("10.99.0.1"), 6443),
    ]
