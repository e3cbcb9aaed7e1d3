"""Rights of accounts and users according to the API server, and its network policies, compared with written lists."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence

import pytest
import yaml

from e2e.cluster.kube import Kube, Object, Refused
from e2e.cluster.network.flows import must_not_pass, must_pass
from e2e.cluster.network.netpol import Policies
from e2e.tests.conftest import NAMESPACE, RELEASE

ADMINISTRATOR: Object = {"user": "admin", "groups": ["system:masters"]}
KINDS = ("enginepools", "inferlets", "inferletruns")

GROUPS = {
    "apiservices": "apiregistration.k8s.io",
    "certificatesigningrequests": "certificates.k8s.io",
    "clusterrolebindings": "rbac.authorization.k8s.io",
    "clusterroles": "rbac.authorization.k8s.io",
    "cronjobs": "batch",
    "customresourcedefinitions": "apiextensions.k8s.io",
    "daemonsets": "apps",
    "deployments": "apps",
    "ingresses": "networking.k8s.io",
    "jobs": "batch",
    "leases": "coordination.k8s.io",
    "networkpolicies": "networking.k8s.io",
    "poddisruptionbudgets": "policy",
    "replicasets": "apps",
    "rolebindings": "rbac.authorization.k8s.io",
    "roles": "rbac.authorization.k8s.io",
    "statefulsets": "apps",
    "subjectaccessreviews": "authorization.k8s.io",
    "tokenreviews": "authentication.k8s.io",
    "validatingwebhookconfigurations": "admissionregistration.k8s.io",
    **dict.fromkeys(KINDS, "tartlet.dev"),
}
"""API groups of the resources below; all others are in the core group."""

NEEDS = (
    *(f"{verb} {kind}" for verb in ("get", "list", "watch") for kind in KINDS),
    *(f"patch {kind}/status" for kind in KINDS),
    "delete inferletruns",
    *("patch enginepools", "delete enginepools"),  # to keep a deleted pool until its engines have drained
    "patch enginepools/scale",  # of pools with spec.autoscaling
    "update enginepools/finalizers",
    *(f"{verb} deployments" for verb in ("get", "list", "watch", "create", "patch")),
    *(f"{verb} poddisruptionbudgets" for verb in ("get", "create", "patch")),
    *(f"{verb} {what}" for verb in ("get", "list", "watch") for what in ("pods", "configmaps")),
    *("create configmaps", "patch configmaps"),  # the lists of pools' adapters
    "create events",
    "create enginepools",  # those of the release's values
    *(f"{verb} configmaps tartlet-pools" for verb in ("get", "patch")),  # they stand there
    *(f"{verb} leases tartlet-operator" for verb in ("list", "watch")),
    "create leases",  # a rule can't name an object that doesn't exist yet
    "get leases tartlet-operator",
    "update leases tartlet-operator",
)
"""All rights of the operator's account."""

MUST_NOT = (
    *(f"{verb} secrets" for verb in ("get", "list", "watch", "create", "patch", "update", "delete")),
    "get secrets tartlet-client-tls",
    "get secrets tartlet-ca",
    *(f"{verb} pods" for verb in ("create", "patch", "update", "delete", "deletecollection")),
    *(
        f"create pods/{what}"
        for what in ("exec", "attach", "portforward", "ephemeralcontainers", "eviction", "binding")
    ),
    *("get pods/log", "get pods/exec", "get pods/portforward", "patch pods/status", "create pods/proxy"),
    *("create serviceaccounts", "create serviceaccounts/token", "impersonate serviceaccounts"),
    *("impersonate users", "impersonate groups"),
    *("update configmaps", "delete configmaps"),
    *("list services", "create services", "create endpoints", "create persistentvolumeclaims"),
    *("list events", "delete events", "patch events"),
    *("delete deployments", "update deployments", "patch deployments/status", "patch deployments/scale"),
    *("list replicasets", "create daemonsets", "create statefulsets", "create jobs", "create cronjobs"),
    *("delete poddisruptionbudgets", "list poddisruptionbudgets"),
    *("create networkpolicies", "delete networkpolicies", "create ingresses"),
    *("create roles", "patch roles", "bind roles", "escalate roles", "create rolebindings", "patch rolebindings"),
    *("create clusterroles", "bind clusterroles", "escalate clusterroles", "create clusterrolebindings"),
    *("get customresourcedefinitions", "patch customresourcedefinitions", "create validatingwebhookconfigurations"),
    *("create apiservices", "patch certificatesigningrequests/approval"),
    *("create subjectaccessreviews", "create tokenreviews"),
    *(
        "list leases",
        "watch leases",
        "patch leases",
        "delete leases tartlet-operator",
        "get leases another",
        "update leases another",
    ),
    *(f"{verb} {kind}" for verb in ("update", "deletecollection") for kind in KINDS),
    *("create inferlets", "create inferletruns", "patch inferlets", "patch inferletruns", "delete inferlets"),
    *("update inferlets/status", "update enginepools/scale"),
    *("get nodes", "list nodes", "create nodes/proxy", "list namespaces", "create namespaces", "delete namespaces"),
    *("list persistentvolumes", "get enginepools/finalizers"),
)
"""Actions that the operator's account must never be allowed."""

VIEWS = tuple(f"{verb} {kind}{of}" for verb in ("get", "list", "watch") for kind in KINDS for of in ("", "/status"))
EDITS = (
    *VIEWS,
    *(f"{v} {kind}" for v in ("create", "update", "patch", "delete", "deletecollection") for kind in KINDS),
    *("patch enginepools/scale", "update enginepools/scale"),
    *("get secrets tartlet-client-tls", "get pods", "list pods", "get services", "list services"),
    *("get pods/portforward", "create pods/portforward"),
    *(f"{verb} configmaps" for verb in ("get", "create", "update", "patch")),
)
IDENTITIES_OF_ROLES = ("tartlet-ca", *(f"tartlet-{role}-tls" for role in ("control", "runtime", "worker", "operator")))
MUST_NOT_EDIT = (
    *(f"get secrets {name}" for name in IDENTITIES_OF_ROLES),
    *("list secrets", "watch secrets", "get secrets another", "create secrets"),
    *(f"{verb} secrets tartlet-client-tls" for verb in ("list", "patch", "update", "delete")),
    *(f"{verb} {kind}/status" for verb in ("update", "patch") for kind in KINDS),
    *("create pods", "delete pods", "create pods/exec", "get pods/exec", "get pods/log", "patch deployments"),
    *("list configmaps", "watch configmaps", "delete configmaps", "deletecollection configmaps"),
    *("update leases tartlet-operator", "create roles", "create rolebindings", "impersonate users"),
    *("create serviceaccounts/token", "patch customresourcedefinitions", "delete networkpolicies"),
)
MUST_NOT_VIEW = tuple(dict.fromkeys((*(a for a in EDITS if a not in VIEWS), *MUST_NOT_EDIT)))


def account(name: str) -> Object:
    """Returns the user name of a service account in the release's namespace."""
    groups = ["system:authenticated", "system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}"]
    return {"user": f"system:serviceaccount:{NAMESPACE}:{name}", "groups": groups}


def user(name: str) -> Object:
    """Returns the attributes of a person."""
    return {"user": name, "groups": ["system:authenticated"]}


def allowed(kube: Kube, who: Object, actions: Sequence[str], namespace: str = NAMESPACE) -> list[str]:
    """Returns which of these actions the API server would allow a user in a namespace."""
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


def rules(kube: Kube, name: str) -> set[str]:
    """Returns all rights of a service account in its namespace, according to the API server."""
    review: Object = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": NAMESPACE},
    }
    asked = ("create", "-f", "-", "-o", "yaml", "--validate=false", f"--as={account(name)['user']}")
    status = yaml.safe_load(kube(*asked, text=yaml.safe_dump(review)))["status"]
    assert not status["incomplete"]
    return {
        f"{verb} {resource}{f' {each}' if each else ''} {group}".rstrip()
        for rule in status["resourceRules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for each in rule.get("resourceNames") or [""]
    }


def test_the_operator_may_do_what_it_needs_and_no_more(kube: Kube) -> None:
    operator = account(f"{RELEASE}-operator")
    assert allowed(kube, operator, NEEDS) == list(NEEDS)
    assert allowed(kube, operator, MUST_NOT) == []
    assert allowed(kube, operator, NEEDS, "default") == []
    assert allowed(kube, operator, NEEDS, "kube-system") == []
    assert allowed(kube, ADMINISTRATOR, (*NEEDS, *MUST_NOT)) == [*NEEDS, *MUST_NOT]  # all of them are things to do


def test_its_rules_are_exactly_those_written_here(kube: Kube) -> None:
    everybodys = rules(kube, "default")
    needs = {f"{need} {GROUPS.get(need.split(' ')[1].partition('/')[0], '')}".rstrip() for need in NEEDS}
    assert rules(kube, f"{RELEASE}-operator") - everybodys == needs
    assert rules(kube, RELEASE) == everybodys


def test_the_other_roles_may_do_nothing(kube: Kube) -> None:
    assert allowed(kube, account(RELEASE), (*NEEDS, *MUST_NOT)) == []
    pods = kube.items("pods", "-l", "app.kubernetes.io/name=tartlet,app.kubernetes.io/component notin (worker)")
    accounts = {p["metadata"]["labels"]["app.kubernetes.io/component"]: p["spec"]["serviceAccountName"] for p in pods}
    assert accounts.items() >= {"control": RELEASE, "runtime": RELEASE, "operator": f"{RELEASE}-operator"}.items()


def test_its_token_opens_what_the_reviews_say(kube: Kube) -> None:
    """Uses the account's own token instead of asking about its rights."""
    token = f"--token={kube('create', 'token', f'{RELEASE}-operator').strip()}"
    kube("get", "epool", token)
    for refused in (("get", "secrets"), ("get", "epool", "-n", "default"), ("delete", "ilet", "none")):
        with pytest.raises(Refused, match="orbidden"):
            kube(*refused, token)


@pytest.fixture(scope="module")
def people(kube: Kube) -> dict[str, Object]:
    """A user for each role: those of the release, and the cluster's that aggregate them."""
    prefix = f"tartlet:{NAMESPACE}:{RELEASE}:"
    roles = {"vera": f"{prefix}viewer", "edda": f"{prefix}editor", "view": "view", "edit": "edit", "adam": "admin"}
    kube.apply(
        *(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "RoleBinding",
                "metadata": {"name": f"safety-{name}"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}],
            }
            for name, role in roles.items()
        )
    )
    return {name: user(name) for name in roles}


def test_viewers_see_and_change_nothing(kube: Kube, people: dict[str, Object]) -> None:
    assert allowed(kube, people["vera"], VIEWS) == list(VIEWS)
    assert allowed(kube, people["vera"], MUST_NOT_VIEW) == []
    assert allowed(kube, people["vera"], VIEWS, "default") == []


def test_editors_change_and_read_one_secret(kube: Kube, people: dict[str, Object]) -> None:
    assert allowed(kube, people["edda"], EDITS) == list(EDITS)
    assert allowed(kube, people["edda"], MUST_NOT_EDIT) == []
    assert allowed(kube, people["edda"], EDITS, "default") == []
    assert kube.get("secret/tartlet-client-tls", "--as=edda")["data"]
    for name in IDENTITIES_OF_ROLES:
        with pytest.raises(Refused, match="forbidden"):
            kube("get", "secret", name, "--as=edda")


def test_the_clusters_own_roles_see_and_edit_too(kube: Kube, people: dict[str, Object]) -> None:
    changes = tuple(f"{verb} {kind}" for verb in ("create", "patch", "delete") for kind in KINDS)
    assert allowed(kube, people["view"], (*VIEWS, *changes, "get secrets tartlet-client-tls")) == list(VIEWS)
    for name in ("edit", "adam"):
        assert allowed(kube, people[name], (*VIEWS, *changes)) == [*VIEWS, *changes]
    assert allowed(kube, user("nobody"), (*VIEWS, *changes)) == []


@pytest.mark.parametrize("websockets", ["true", "false"])
def test_editors_reach_a_runtime_and_viewers_do_not(kube: Kube, people: dict[str, Object], websockets: str) -> None:
    assert "Forwarding from" in next(forwarded(kube, "edda", websockets))
    assert "forbidden" in next(forwarded(kube, "vera", websockets)).lower()


def forwarded(kube: Kube, who: str, websockets: str) -> Iterator[str]:
    """Returns the first output of a port-forward to the runtime."""
    target = ("port-forward", f"svc/{RELEASE}-runtime", ":7444", f"--as={who}", "-n", NAMESPACE)
    command = ["env", f"KUBECTL_PORT_FORWARD_WEBSOCKETS={websockets}", *kube.cluster.kubectl(), *target]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True
    )
    with process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline()
        finally:
            process.terminate()


def test_the_live_policies_refuse_what_must_be_refused(kube: Kube) -> None:
    policies = live_policies(kube)
    assert [name for name, flow in must_pass(RELEASE, NAMESPACE) if not policies.allow(flow)] == []
    assert [name for name, flow in must_not_pass(RELEASE, NAMESPACE) if policies.allow(flow)] == []


def live_policies(kube: Kube) -> Policies:
    """Returns the policies of all namespaces from the API server."""
    return Policies(kube.items("networkpolicies", "-A"), {"elsewhere": {}, **namespaces(kube)})


def namespaces(kube: Kube) -> dict[str, dict[str, str]]:
    """Returns the labels of all namespaces."""
    return {n["metadata"]["name"]: n["metadata"].get("labels", {}) for n in kube.items("namespaces")}
