"""Records every connection of a cluster's pods, from the kernel's list and from watches of pods and Services."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import IO, Final

from e2e.cluster.kube import Kube, Object
from e2e.cluster.network.conntrack import flows, parse, pods_by_address
from e2e.cluster.network.netpol import Flow, Pod, Policies
from e2e.cluster.own import configs
from e2e.cluster.provider import Own
from e2e.cluster.watch import events

GATEWAY: Final = "10.88.77.1"
"""The node's address on the pods' bridge, from which probes and port-forwards come."""

_PERIOD_S: Final = 2.0
"""Time between two looks, in seconds; shorter than the kernel remembers a closed connection."""
_TUPLE: Final = re.compile(r"^(\w+)|((?:src|dst|sport|dport)=\S+)")


@dataclass(slots=True)
class Traffic:
    """The connections seen so far, without those from before the first look."""

    pods: dict[str, Pod] = field(default_factory=dict)
    policies: dict[tuple[str, str], Object] = field(default_factory=dict)
    flows: dict[str, Flow] = field(default_factory=dict)
    unresolved: dict[str, str] = field(default_factory=dict)
    tried: set[str] = field(default_factory=set)
    """Keys of connections that a test made to show that policies refuse them."""
    before: frozenset[str] = frozenset()
    lock: threading.Lock = field(default_factory=threading.Lock)

    def saw(self, kind: str, event: Object) -> None:
        """Adds an event of a watch."""
        body = event["object"]
        with self.lock:
            if kind == "pods":
                self.pods.update(pods_by_address([body], GATEWAY))
            elif event["type"] != "DELETED":  # policies of a removed release still apply to its connections
                self.policies[body["metadata"]["namespace"], body["metadata"]["name"]] = body

    def listed(self, listing: str) -> None:
        """Adds a list of the kernel's connections; an address means the pod that had it when the connection was new."""
        with self.lock:
            for line in listing.splitlines():
                key = _key(line)
                if key in self.before or key in self.flows:
                    continue
                for connection in parse(line):
                    unknown = {a for a in (connection.source, connection.target) if _is_pods(a)} - {*self.pods, GATEWAY}
                    if unknown:
                        self.unresolved[key] = line
                        continue
                    self.unresolved.pop(key, None)
                    for flow in flows([connection], self.pods):
                        self.flows[key] = flow

    def attempt(self, address: str, port: int) -> Flow:
        """Returns the connection that a test made from an address and port, and notes that it was tried.

        Raises:
            KeyError: The kernel's lists have no such connection.
        """
        with self.lock:
            for key, flow in self.flows.items():
                if f" src={address} " in key and f" sport={port} " in key:
                    self.tried.add(key)
                    return flow
        raise KeyError(f"no connection from {address}:{port} was seen")

    def judged_by(self, namespaces: Mapping[str, Mapping[str, str]]) -> Policies:
        """Returns all policies seen, each in its last form; `namespaces` are the labels of the present namespaces."""
        with self.lock:
            gone: dict[str, Mapping[str, str]] = {pod.namespace: {} for pod in self.pods.values()}
            return Policies(self.policies.values(), {**gone, **namespaces})


def _key(line: str) -> str:
    """Returns a connection's ends with both ports."""
    return " ".join(match.group() for match in _TUPLE.finditer(line))


def _is_pods(address: str) -> bool:
    return ip_address(address) in ip_network(configs.PODS)


@contextmanager
def recorded(kube: Kube, cluster: Own) -> Iterator[Traffic]:
    """Records all connections during a block, through restarts of the API server."""
    traffic = Traffic(before=frozenset(map(_key, cluster.connections().splitlines())))
    over = threading.Event()
    watches = [_Watch(kube, kind, traffic, over) for kind in ("pods", "networkpolicies")]

    def look() -> None:
        while not over.wait(_PERIOD_S):
            traffic.listed(cluster.connections())

    threads = [threading.Thread(target=task, daemon=True) for task in (look, *(w.run for w in watches))]
    for thread in threads:
        thread.start()
    try:
        yield traffic
    finally:
        over.set()
        for watch in watches:
            watch.end()
        for thread in threads:
            thread.join()


class _Watch:
    """Watches objects, and starts the watch again when the API server ends it."""

    def __init__(self, kube: Kube, kind: str, traffic: Traffic, over: threading.Event) -> None:
        self._command = [*kube.cluster.kubectl(), "get", kind, "-A", "--watch", "--output-watch-events", "-o", "json"]
        self._kind, self._traffic, self._over = kind, traffic, over
        self._process: subprocess.Popen[str] | None = None

    def run(self) -> None:
        while not self._over.is_set():
            self._process = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
            )
            with self._process:
                if self._over.is_set():
                    self._process.terminate()
                assert self._process.stdout is not None
                self._read(self._process.stdout)
            self._over.wait(0.5)

    def _read(self, stream: IO[str]) -> None:
        try:
            for event in events(stream):
                self._traffic.saw(self._kind, event)
        except json.JSONDecodeError:  # cut off by a restart of the API server
            return

    def end(self) -> None:
        if self._process is not None:
            self._process.terminate()
