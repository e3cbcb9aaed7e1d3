"""Reads the kernel's list of connections, with Services resolved to the pods behind them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from e2e.cluster.network.netpol import Flow, Host, Pod

_TUPLE = re.compile(r"src=(\S+) dst=(\S+) sport=(\d+) dport=(\d+)")


@dataclass(frozen=True, slots=True, order=True)
class Connection:
    """One connection: the client's address, and the server's address and port."""

    source: str
    target: str
    port: int
    protocol: Literal["TCP", "UDP"]


def parse(listing: str) -> Iterator[Connection]:
    """Returns the answered connections in the output of `conntrack -L`.

    A line has the tuple of the first packet, then that of the answer, whose source is the pod behind the Service.
    """
    for line in listing.splitlines():
        tuples = _TUPLE.findall(line)
        if len(tuples) == 2 and "[UNREPLIED]" not in line:
            protocol: Literal["TCP", "UDP"] = "UDP" if line.startswith("udp") else "TCP"
            yield Connection(tuples[0][0], tuples[1][0], int(tuples[1][2]), protocol)


def pods_by_address(pods: Iterable[Mapping[str, Any]], node: str) -> dict[str, Pod]:
    """Returns pods by their addresses; probes and port-forwards come from the address `node`."""
    found = {}
    for pod in pods:
        address = pod.get("status", {}).get("podIP")
        if address and not pod["spec"].get("hostNetwork"):
            ports = {
                p["name"]: p["containerPort"]
                for c in pod["spec"]["containers"]
                for p in c.get("ports", ())
                if "name" in p
            }
            meta = pod["metadata"]
            found[address] = Pod(meta["namespace"], meta.get("labels", {}), address, ports, node)
    return found


def flows(connections: Iterable[Connection], pods: Mapping[str, Pod]) -> Iterator[Flow]:
    """Returns the flows with a pod on at least one end; any other address counts as a host."""
    for each in sorted(set(connections)):
        source, target = pods.get(each.source), pods.get(each.target)
        if source is not None or target is not None:
            yield Flow(source or Host(each.source), target or Host(each.target), each.port, each.protocol)
