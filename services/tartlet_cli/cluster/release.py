"""Which release of the chart is meant, and which of its pods to talk to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tartlet_cli.cluster.api import PODS, SERVICES, Cluster
from tartlet_cli.cluster.errors import ReleaseAmbiguous, ReleaseNotFound, RuntimeNotReady

Object = dict[str, Any]

RUNTIMES: Final = "app.kubernetes.io/name=tartlet,app.kubernetes.io/component=runtime"
INSTANCE: Final = "app.kubernetes.io/instance"

_PORT_NAME = "grpc"
_SUFFIX = "-runtime"


@dataclass(frozen=True, slots=True)
class Release:
    """A release, as its runtime's Service shows it."""

    name: str
    namespace: str
    prefix: str  # of its objects' names

    @property
    def runtime(self) -> str:
        """Name of the runtime's Service and Deployment."""
        return self.prefix + _SUFFIX

    @property
    def client_secret(self) -> str:
        """Name of the Secret with a client's identity."""
        return f"{self.prefix}-client-tls"


def choose(services: Sequence[Object], namespace: str, wanted: str = "") -> Release:
    """The release that is meant.

    Args:
        services: of the namespace's runtimes.
        namespace: theirs.
        wanted: its name; "": the only one.

    Raises:
        ReleaseNotFound: there is none.
        ReleaseAmbiguous: there are several.
    """
    found = {}
    for service in services:
        metadata = service["metadata"]
        name = (metadata.get("labels") or {}).get(INSTANCE, "")
        if metadata["name"].endswith(_SUFFIX) and not metadata.get("deletionTimestamp"):
            found[name] = Release(name, namespace, metadata["name"].removesuffix(_SUFFIX))
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
    """Name and port of a runtime's pod that takes programs; the oldest, which goes last when runtimes are replaced.

    Raises:
        RuntimeNotReady: there is none; it says how each is.
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
    """How a pod is, in a few words; "ready" if it takes programs."""
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
                return f"{reason} ({message[:200]})" if message else str(reason)
    return f"{status.get('phase', 'unknown')}, not ready"


def find_release(cluster: Cluster, wanted: str = "") -> Release:
    """The release of the cluster's namespace.

    Raises:
        ReleaseNotFound, ReleaseAmbiguous: as `choose`.
    """
    return choose(cluster.list(SERVICES, cluster.namespace, RUNTIMES), cluster.namespace, wanted)


def find_pod(cluster: Cluster, release: Release) -> tuple[str, int]:
    """Name and port of a runtime's pod that takes programs.

    Raises:
        RuntimeNotReady: there is none.
    """
    labels = f"{RUNTIMES},{INSTANCE}={release.name}"
    return ready_pod(cluster.list(PODS, release.namespace, labels), release)
