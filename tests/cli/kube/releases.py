"""A release's objects on a real API server, before roles that run as processes of the test's."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tartlet_cli.cluster.release import TLS_DOMAIN
from tests.cli.kube.kube_shell import Shell, kubeconfig
from tests.cli.kube.kubelet import Kubelet
from tests.e2e.cluster import Cluster as Roles

NODE = "n1"
DOMAIN = "prod.somewhere.tartlet.internal"
LABELS = {
    "app.kubernetes.io/name": "tartlet",
    "app.kubernetes.io/component": "runtime",
    "app.kubernetes.io/instance": "prod",
}
RULES = [
    {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["prod-client-tls"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["services", "pods"], "verbs": ["get", "list"]},
    {"apiGroups": [""], "resources": ["pods/portforward"], "verbs": ["get", "create"]},
]


@dataclass
class Release:
    """A release as its objects show it, with an editor of the namespace."""

    shell: Shell
    kubelet: Kubelet
    editor: Shell
    role: str

    def core(self, method: str, rest: str, body: Any = None, content_type: str = "application/json") -> Any:
        path = f"/api/v1/namespaces/{self.shell.namespace}/{rest}"
        return self.shell.server.call(method, path, body, content_type)


@contextlib.contextmanager
def release_up(shell: Shell, roles: Roles, runtimes: Sequence[str]) -> Iterator[Release]:
    """A release whose pods `prod-runtime-0`, `prod-runtime-1`... are the runtimes at these addresses."""
    kubelet = Kubelet({f"prod-runtime-{n}": int(address.rpartition(":")[2]) for n, address in enumerate(runtimes)})
    kubelet.start(shell.directory)
    call, space = shell.server.call, shell.namespace
    node = f"{NODE}-{space}"
    call("POST", "/api/v1/nodes", {"metadata": {"name": node}})
    status: dict[str, Any] = {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}
    status["daemonEndpoints"] = {"kubeletEndpoint": {"Port": kubelet.port}}
    call("PATCH", f"/api/v1/nodes/{node}/status", {"status": status}, "application/merge-patch+json")
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{space}"
    call("POST", f"{rbac}/roles", {"metadata": {"name": "editor"}, "rules": RULES})
    made = Release(shell, kubelet, shell, f"{rbac}/roles/editor")
    made.core("POST", "serviceaccounts", {"metadata": {"name": "dev"}})
    subject = {"kind": "ServiceAccount", "name": "dev", "namespace": space}
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "editor"}
    call("POST", f"{rbac}/rolebindings", {"metadata": {"name": "dev"}, "roleRef": ref, "subjects": [subject]})
    token = made.core("POST", "serviceaccounts/dev/token", {"apiVersion": "authentication.k8s.io/v1", "spec": {}})
    config = kubeconfig(shell.server, shell.directory / "dev", space, token["status"]["token"])
    made.editor = Shell(shell.server, space, shell.directory, config)

    tls = roles.identity("client")
    files = zip(("tls.crt", "tls.key", "ca.crt"), tls.files, strict=True)
    data = {name: base64.b64encode(path.read_bytes()).decode() for name, path in files}
    made.core("POST", "secrets", {"metadata": {"name": "prod-client-tls"}, "data": data})
    ports = [{"name": "grpc", "port": 7444, "targetPort": "grpc"}]
    spec: dict[str, Any] = {"selector": LABELS, "ports": ports}
    notes = {TLS_DOMAIN: DOMAIN}
    made.core(
        "POST", "services", {"metadata": {"name": "prod-runtime", "labels": LABELS, "annotations": notes}, "spec": spec}
    )
    container = {"name": "runtime", "image": "x", "ports": [{"name": "grpc", "containerPort": 7444}]}
    for pod in kubelet.targets:
        spec = {"nodeName": node, "containers": [container]}
        made.core("POST", "pods", {"metadata": {"name": pod, "labels": LABELS}, "spec": spec})
        ready(made, "True", pod)
    try:
        yield made
    finally:
        kubelet.stop()
        call("DELETE", f"/api/v1/nodes/{node}")


def ready(release: Release, status: str, pod: str = "prod-runtime-0") -> None:
    """Sets the condition Ready of a pod."""
    conditions = [{"type": "Ready", "status": status}]
    body = {"status": {"phase": "Running", "conditions": conditions}}
    release.core("PATCH", f"pods/{pod}/status", body, "application/strategic-merge-patch+json")
