"""Chooses a release of the chart and the pod of its runtime to talk to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tartlet_cli.cluster.api import PODS, SERVICES, Cluster
from tartlet_cli.cluster.errors import ReleaseAmbiguous, ReleaseNotFound, RuntimeNotReady

Object = dict[str, Any]

RUNTIMES: Final = "app.kubernetes.io/name=tartlet,app.kubernetes.io/component=runtime"
INSTANCE: Final = "app.kubernetes.io/instance"
TLS_DOMAIN: Final = "tartlet.dev/tls-domain"
"""The annotation of the runtime's Service that names the domain of the release's certificates."""

_PORT_NAME = "grpc"
_SUFFIX = "-runtime"
_SAID_CHARS = 500  # a failed pull tells the image first and its cause last


@dataclass(frozen=True, slots=True)
class Release:
    """A release, as described by its runtime's Service."""

    name: str
    namespace: str
    prefix: str  # prefix of the names of its objects
    tls_domain: str = ""  # domain of the names in its certificates

    @property
    def runtime(self) -> str:
        """The name of the runtime's Service and Deployment."""
        return self.prefix + _SUFFIX

    @property
    def client_secret(self) -> str:
        """The name of the Secret with the clients' identity."""
        return f"{self.prefix}-client-tls"


def choose(services: Sequence[Object], namespace: str, wanted: str = "") -> Release:
    """Choose a release.

    Args:
        services: the Services of the namespace's runtimes.
        namespace: that namespace.
        wanted: the release's name; "": the only release.

    Raises:
        ReleaseNotFound: there is no such release.
        ReleaseAmbiguous: `wanted` is "", and there are several releases.
    """
    found = {}
    for service in services:
        metadata = service["metadata"]
        name = (metadata.get("labels") or {}).get(INSTANCE, "")
        if metadata["name"].endswith(_SUFFIX) and not metadata.get("deletionTimestamp"):
            domain = (metadata.get("annotations") or {}).get(TLS_DOMAIN, "")
            found[name] = Release(name, namespace, metadata["name"].removesuffix(_SUFFIX), domain)
    if wanted:
        if wanted not in found:
            others = f"; there are: {', '.join(sorted(found))}" if found else ""
            raise ReleaseNotFound(named=f" named {wanted}", namespace=namespace, others=others)
        return found[wanted]
    if not found:
        raise ReleaseNotFound(named="", namespace=namespace, others="")
    if len(found) > 1:
        raise ReleaseAmbiguous(namespace=namespace, names=", ".join(sorted(found)))
    return next(iter(found.values()))


def ready_pod(pods: Sequence[Object], release: Release) -> tuple[str, int]:
    """Return name and port of the oldest runtime pod that takes programs, because rollouts replace that pod last.

    Raises:
        RuntimeNotReady: no pod takes programs; the error gives the state of each.
    """
    ready = [pod for pod in pods if state(pod) == "ready"]
    if not ready:
        detail = "; ".join(f"pod {pod['metadata']['name']} is {state(pod)}" for pod in pods) or "there is no pod"
        raise RuntimeNotReady(release=release.name, namespace=release.namespace, name=release.runtime, detail=detail)
    pod = min(ready, key=lambda p: (p["metadata"].get("creationTimestamp") or "", p["metadata"]["name"]))
    for container in pod["spec"]["containers"]:
        for port in container.get("ports") or []:
            if port.get("name") == _PORT_NAME:
                return pod["metadata"]["name"], int(port["containerPort"])
    detail = f"pod {pod['metadata']['name']} has no port named {_PORT_NAME}"
    raise RuntimeNotReady(release=release.name, namespace=release.namespace, name=release.runtime, detail=detail)


def state(pod: Object) -> str:
    """Describe a pod's state in a few words; "ready" if it takes programs."""
    if pod["metadata"].get("deletionTimestamp"):
        return "being deleted"
    status = pod.get("status") or {}
    conditions = {c["type"]: c["status"] for c in status.get("conditions") or []}
    if conditions.get("Ready") == "True":
        return "ready"
    every = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    for container in every:
        now = container.get("state") or {}
        for kind in ("waiting", "terminated"):
            reason = (now.get(kind) or {}).get("reason")
            if reason and reason not in ("PodInitializing", "ContainerCreating", "Completed"):
                message = (now[kind].get("message") or "").strip()
                return f"{reason} ({message[:_SAID_CHARS]})" if message else str(reason)
    return f"{status.get('phase', 'unknown')}, not ready"


def trouble(pod: Object) -> str:
    """Return what keeps a pod's containers from running, such as an image that can't be pulled; "" if nothing does."""
    phase = (pod.get("status") or {}).get("phase")
    said = state(pod)
    quiet = phase == "Succeeded" or said in ("ready", "being deleted") or said.endswith(", not ready")
    return "" if quiet else said


def find_release(cluster: Cluster, wanted: str = "") -> Release:
    """Find the release in the cluster's namespace.

    Raises:
        ReleaseNotFound, ReleaseAmbiguous: see `choose`.
    """
    return choose(cluster.list(SERVICES, cluster.namespace, RUNTIMES), cluster.namespace, wanted)


def find_pod(cluster: Cluster, release: Release) -> tuple[str, int]:
    """Find name and port of a runtime's pod that takes programs.

    Raises:
        RuntimeNotReady: no pod takes programs.
    """
    labels = f"{RUNTIMES},{INSTANCE}={release.name}"
    return ready_pod(cluster.list(PODS, release.namespace, labels), release)
