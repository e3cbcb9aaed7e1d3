"""What pods may do: asked of the API server, and held against the connections that they really made."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from ipaddress import ip_address, ip_network

import pytest
import yaml

from e2e.cluster import configs
from e2e.cluster.conntrack import flows, parse, pods_by_address
from e2e.cluster.flows import must_not_pass, must_pass
from e2e.cluster.kube import Kube, Object
from e2e.cluster.netpol import Flow, Host, Pod, Policies
from e2e.cluster.provider import Cluster, Own
from e2e.tests.conftest import NAMESPACE, RELEASE
from e2e.tests.test_answers import run

GATEWAY = "10.88.77.1"
"""The node's address on the pods' bridge: probes and port-forwards come from it."""

ADMINISTRATOR = "admin"
GROUPS = {
    "configmaps": "",
    "customresourcedefinitions": "apiextensions.k8s.io",
    "daemonsets": "apps",
    "deployments": "apps",
    "enginepools": "tartlet.dev",
    "inferletruns": "tartlet.dev",
    "inferlets": "tartlet.dev",
    "leases": "coordination.k8s.io",
    "poddisruptionbudgets": "policy",
    "clusterroles": "rbac.authorization.k8s.io",
    "rolebindings": "rbac.authorization.k8s.io",
    "roles": "rbac.authorization.k8s.io",
}
"""API groups of the resources below; the rest are the core's."""

NEEDS = (
    "list enginepools",
    "watch inferlets",
    "patch inferletruns/status",
    "delete inferletruns",
    "create deployments",
    "patch deployments",
    "create poddisruptionbudgets",
    "watch pods",
    "list configmaps",
    "create events",
    "get leases tartlet-operator",
    "update leases tartlet-operator",
)

MUST_NOT = (
    "get secrets",
    "list secrets",
    "create secrets",
    "create pods",
    "delete pods",
    "create pods/exec",
    "create pods/portforward",
    "create serviceaccounts/token",
    "create configmaps",
    "patch configmaps",
    "create roles",
    "create rolebindings",
    "bind clusterroles",
    "escalate roles",
    "patch customresourcedefinitions",
    "create daemonsets",
    "update leases another",
    "patch enginepools",
    "delete enginepools",
    "create inferletruns",
    "impersonate users",
    "get nodes",
    "delete namespaces",
)


def allowed(kube: Kube, account: str, actions: Sequence[str], namespace: str = NAMESPACE) -> list[str]:
    """Which of these the API server would let a service account of the release's namespace do in a namespace."""
    groups = ["system:authenticated", "system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}"]
    who: Object = {"user": f"system:serviceaccount:{NAMESPACE}:{account}", "groups": groups}
    if account == ADMINISTRATOR:
        who = {"user": "admin", "groups": ["system:masters"]}
    reviews = [_review(who, action, namespace) for action in actions]
    answers = list(yaml.safe_load_all(kube("create", "-f", "-", "-o", "yaml", text=yaml.safe_dump_all(reviews))))
    assert len(answers) == len(actions)
    return [action for action, answer in zip(actions, answers, strict=True) if answer["status"]["allowed"]]


def _review(who: Object, action: str, namespace: str) -> Object:
    verb, what, *name = action.split(" ")
    resource, _, subresource = what.partition("/")
    asked = {"namespace": namespace, "verb": verb, "group": GROUPS.get(resource, ""), "resource": resource}
    asked |= {"subresource": subresource, "name": name[0] if name else ""}
    kind = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}
    return {**kind, "spec": {**who, "resourceAttributes": asked}}


def test_the_operator_may_do_what_it_needs_and_no_more(kube: Kube) -> None:
    account = f"{RELEASE}-operator"
    assert allowed(kube, account, NEEDS) == list(NEEDS)
    assert allowed(kube, account, MUST_NOT) == []
    assert allowed(kube, account, NEEDS, "default") == []
    assert allowed(kube, ADMINISTRATOR, MUST_NOT) == list(MUST_NOT)


def test_the_other_roles_may_do_nothing_and_carry_no_token(kube: Kube) -> None:
    assert allowed(kube, RELEASE, (*NEEDS, *MUST_NOT)) == []
    pods = [p for p in kube.items("pods") if p["metadata"]["labels"].get("app.kubernetes.io/name") == "tartlet"]
    roles = {p["metadata"]["labels"]["app.kubernetes.io/component"] for p in pods}
    assert {"control", "runtime", "operator"} <= roles
    for pod in pods:
        if pod["metadata"]["labels"]["app.kubernetes.io/component"] != "operator":
            mounts = [m["mountPath"] for c in pod["spec"]["containers"] for m in c["volumeMounts"]]
            assert "/var/run/secrets/kubernetes.io/serviceaccount" not in mounts


def test_every_connection_made_is_allowed(kube: Kube, cluster: Cluster, fake_pool: str) -> None:
    if not isinstance(cluster, Own):
        pytest.skip("connections are read from the kernel of this machine's own cluster")
    kube.apply_file("docs/examples/inferlet-hello.yaml")
    kube.wait("ilet/hello", "Ready")
    kube.apply(run("seen", "hello", args=["x"]))
    kube.wait("irun/seen", "Succeeded")
    policies = live_policies(kube)
    pods = pods_by_address(kube.items("pods", "-A"), GATEWAY)
    # the kernel remembers connections of pods that are gone, whose labels nobody can tell any more
    known = {*pods, GATEWAY}
    made = [c for c in parse(cluster.connections()) if not _gone(c.source, known) and not _gone(c.target, known)]
    seen = [f for f in flows(made, pods) if _ours(f)]
    refused = [(f, policies.refusals(f)) for f in seen if not policies.allow(f)]
    assert refused == []
    pairs = {(_role(f.source), _role(f.target)) for f in seen}
    assert {("runtime", "control"), ("worker", "control"), ("operator", "control"), ("operator", "runtime")} <= pairs, (
        pairs
    )
    assert ("operator", configs.NODE_ADDRESS) in pairs


def test_the_live_policies_refuse_what_must_be_refused(kube: Kube) -> None:
    policies = live_policies(kube)
    assert [name for name, flow in must_pass(RELEASE, NAMESPACE) if not policies.allow(flow)] == []
    assert [name for name, flow in must_not_pass(RELEASE, NAMESPACE) if policies.allow(flow)] == []


def live_policies(kube: Kube) -> Policies:
    """The policies of all namespaces, as the API server has them."""
    namespaces = {n["metadata"]["name"]: n["metadata"].get("labels", {}) for n in kube.items("namespaces")}
    return Policies(kube.items("networkpolicies", "-A"), {"elsewhere": {}, **namespaces})


def _gone(address: str, known: Collection[str]) -> bool:
    return ip_address(address) in ip_network(configs.PODS) and address not in known


def _role(end: Pod | Host) -> str:
    return end.labels.get("app.kubernetes.io/component", "") if isinstance(end, Pod) else end.ip


def _ours(flow: Flow) -> bool:
    return any(isinstance(end, Pod) and end.namespace == NAMESPACE for end in (flow.source, flow.target))
