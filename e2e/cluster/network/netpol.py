"""Evaluates NetworkPolicies (networking.k8s.io/v1): whether they allow a connection.

Meant for clusters whose network doesn't enforce policies: the rendered policies are compared with every flow seen and
with a list of flows that must be refused. The semantics follow the API reference: policies only add; a pod that no
policy of a direction selects is open in that direction; a connection needs both ends' consent; traffic between a pod
and its own node can't be refused.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Policy: TypeAlias = Mapping[str, Any]
Labels: TypeAlias = Mapping[str, str]
Direction: TypeAlias = Literal["Ingress", "Egress"]


@dataclass(frozen=True, slots=True)
class Pod:
    """One end of a connection, a pod.

    `ports` names the container ports; `node` is the address of the pod's node, where that matters.
    """

    namespace: str
    labels: Labels
    ip: str = ""
    ports: Mapping[str, int] = field(default_factory=dict)
    node: str = ""


@dataclass(frozen=True, slots=True)
class Host:
    """One end of a connection that is not a pod: a node, the API server, or an address outside."""

    ip: str


@dataclass(frozen=True, slots=True)
class Flow:
    """A connection's first packet, after Services have been resolved to pods."""

    source: Pod | Host
    target: Pod | Host
    port: int
    protocol: Literal["TCP", "UDP", "SCTP"] = "TCP"


class Policies:
    """The policies of a cluster, and the labels of its namespaces."""

    def __init__(self, policies: Iterable[Policy], namespaces: Mapping[str, Labels]) -> None:
        """`namespaces`: name -> labels; `kubernetes.io/metadata.name` is added, as the API server does."""
        self._policies = list(policies)
        self._namespaces = {
            name: {**labels, "kubernetes.io/metadata.name": name} for name, labels in namespaces.items()
        }

    def allow(self, flow: Flow) -> bool:
        """Whether the policies allow the connection."""
        return not self.refusals(flow)

    def refusals(self, flow: Flow) -> list[str]:
        """Returns which end refuses and by which policies; empty if the connection is allowed."""
        source, target = flow.source, flow.target
        if _same_node(source, target):
            return []
        out = []
        if isinstance(source, Pod) and (said := self._refused(source, target, flow, "Egress")):
            out.append(said)
        if isinstance(target, Pod) and (said := self._refused(target, source, flow, "Ingress")):
            out.append(said)
        return out

    def selecting(self, pod: Pod, direction: Direction) -> list[Policy]:
        """Returns the policies that isolate a pod in a direction."""
        return [
            p
            for p in self._policies
            if p["metadata"].get("namespace", "default") == pod.namespace
            and selects(p["spec"].get("podSelector") or {}, pod.labels)
            and direction in _types(p["spec"])
        ]

    def _refused(self, pod: Pod, peer: Pod | Host, flow: Flow, direction: Direction) -> str:
        isolating = self.selecting(pod, direction)
        target = flow.target
        for policy in isolating:
            for rule in policy["spec"].get(direction.lower()) or []:
                peers = rule.get("from" if direction == "Ingress" else "to")
                at_peer = not peers or any(self._is(p, peer, pod.namespace) for p in peers)
                if at_peer and _at_port(rule.get("ports"), flow, target):
                    return ""
        names = ", ".join(str(p["metadata"]["name"]) for p in isolating)
        return f"{direction} of {dict(pod.labels)} refused by {names}" if isolating else ""

    def _is(self, peer: Mapping[str, Any], end: Pod | Host, namespace: str) -> bool:
        if "ipBlock" in peer:
            return _in_block(peer["ipBlock"], end.ip)
        if isinstance(end, Host):
            return False
        if "namespaceSelector" in peer:
            if not selects(peer["namespaceSelector"] or {}, self._namespaces.get(end.namespace, {})):
                return False
        elif end.namespace != namespace:
            return False
        return selects(peer.get("podSelector") or {}, end.labels)


def selects(selector: Mapping[str, Any], labels: Labels) -> bool:
    """Whether a label selector matches; an empty one matches everything.

    Raises:
        ValueError: an operator that the API doesn't know.
    """
    if any(labels.get(k) != v for k, v in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_matches(e, labels) for e in selector.get("matchExpressions") or ())


def _matches(expression: Mapping[str, Any], labels: Labels) -> bool:
    key, values = expression["key"], expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case other:
            msg = f"unknown operator {other!r} in a selector"
            raise ValueError(msg)


def _types(spec: Mapping[str, Any]) -> Sequence[str]:
    """Returns the policy's directions; without `policyTypes` these are Ingress, and Egress if it has rules."""
    return spec.get("policyTypes") or (["Ingress", "Egress"] if spec.get("egress") else ["Ingress"])


def _at_port(ports: Sequence[Mapping[str, Any]] | None, flow: Flow, target: Pod | Host) -> bool:
    if not ports:
        return True
    for each in ports:
        if each.get("protocol", "TCP") != flow.protocol:
            continue
        port = each.get("port")
        if isinstance(port, str):
            port = target.ports.get(port) if isinstance(target, Pod) else None
            if port is None:
                continue
        if port is None or port <= flow.port <= each.get("endPort", port):
            return True
    return False


def _in_block(block: Mapping[str, Any], ip: str) -> bool:
    if not ip:
        return False
    address = ipaddress.ip_address(ip)

    def within(cidr: str) -> bool:
        network = ipaddress.ip_network(cidr, strict=False)
        return address.version == network.version and address in network

    return within(block["cidr"]) and not any(map(within, block.get("except") or ()))


def _same_node(a: Pod | Host, b: Pod | Host) -> bool:
    """Whether the ends are a pod and its own node, as with the kubelet's probes and port-forwards."""
    pod, host = (a, b) if isinstance(a, Pod) else (b, a)
    return isinstance(pod, Pod) and isinstance(host, Host) and bool(pod.node) and pod.node == host.ip
