"""The rights that the chart's roles grant, compared with lists written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chart.render import EVERYTHING, named, of_kind, render

Grant = tuple[str, str, str, str]  # verb, group, resource, name ("" any)

CUSTOM = ("enginepools", "inferlets", "inferletruns")

NEEDED: set[Grant] = {
    *((verb, "tartlet.dev", kind, "") for verb in ("get", "list", "watch") for kind in CUSTOM),
    *(("patch", "tartlet.dev", f"{kind}/status", "") for kind in CUSTOM),
    ("delete", "tartlet.dev", "inferletruns", ""),
    *((verb, "tartlet.dev", "enginepools", "") for verb in ("patch", "delete")),
    ("patch", "tartlet.dev", "enginepools/scale", ""),
    ("update", "tartlet.dev", "enginepools/finalizers", ""),
    *((verb, "apps", "deployments", "") for verb in ("get", "list", "watch", "create", "patch")),
    *((verb, "policy", "poddisruptionbudgets", "") for verb in ("get", "create", "patch")),
    *((verb, "", kind, "") for verb in ("get", "list", "watch") for kind in ("pods", "configmaps")),
    *((verb, "", "configmaps", "") for verb in ("create", "patch")),  # the lists of pools' adapters
    ("create", "", "events", ""),
    ("create", "coordination.k8s.io", "leases", ""),
    *((verb, "coordination.k8s.io", "leases", "tartlet-operator") for verb in ("get", "list", "update", "watch")),
    *((verb, "", "configmaps", "tartlet-pools") for verb in ("get", "patch")),
    ("create", "tartlet.dev", "enginepools", ""),  # of the release's own namespace
}
"""All rights of the operator's account."""


def grants(role: dict[str, Any]) -> set[Grant]:
    return {
        (verb, group, resource, name)
        for rule in role["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
    }


def test_the_operators_rights_are_exactly_the_listed_ones() -> None:
    objects = render()
    roles = of_kind(objects, "Role")
    assert set().union(*map(grants, roles)) == NEEDED
    assert not of_kind(objects, "ClusterRoleBinding")
    for binding in of_kind(objects, "RoleBinding"):
        assert [s["name"] for s in binding["subjects"]] == ["tartlet-operator"]
        assert named(objects, "Role", binding["roleRef"]["name"])


def test_no_rule_has_a_wildcard_and_only_the_editor_reads_one_secret() -> None:
    for role in (*of_kind(render(EVERYTHING), "Role"), *of_kind(render(EVERYTHING), "ClusterRole")):
        for rule in role["rules"]:
            assert "*" not in (*rule["verbs"], *rule["resources"], *rule["apiGroups"])
        secrets = {g for g in grants(role) if g[2] == "secrets"}
        editor = role["metadata"]["name"].endswith(":editor")
        assert secrets == ({("get", "", "secrets", "tartlet-client-tls")} if editor else set())


def test_other_namespaces_get_a_role_each_without_the_lease() -> None:
    roles = of_kind(render({"operator": {"namespaces": ["a", "b"]}}), "Role")
    where = {(r["metadata"]["namespace"], r["metadata"]["name"]) for r in roles}
    assert where == {("a", "tartlet-operator"), ("b", "tartlet-operator"), ("prod", "tartlet-operator-lease")}
    created = [g for role in roles for g in grants(role) if g[:3] == ("create", "tartlet.dev", "enginepools")]
    assert not created, "the release's own namespace isn't watched, so the pools of the values are nobody's"


@pytest.mark.parametrize(("role", "writes"), [("viewer", False), ("editor", True)])
def test_user_roles_see_or_change_the_custom_resources(role: str, writes: bool) -> None:
    granted = grants(named(render(), "ClusterRole", f"tartlet:prod:tartlet:{role}"))
    for kind in CUSTOM:
        assert {(v, "tartlet.dev", kind, "") for v in ("get", "list", "watch")} <= granted
        for verb in ("create", "update", "patch", "delete"):
            assert ((verb, "tartlet.dev", kind, "") in granted) == writes
    assert not {g for g in granted if g[2].endswith("/status") and g[0] not in {"get", "list", "watch"}}
    sources = {g for g in granted if g[2] == "configmaps"}  # of programs too large for an Inferlet
    assert sources == ({(v, "", "configmaps", "") for v in ("get", "create", "update", "patch")} if writes else set())
    for verb in ("get", "create"):  # by WebSocket and by SPDY
        assert ((verb, "", "pods/portforward", "") in granted) == writes


def test_user_roles_join_the_clusters_own_unless_told_not_to() -> None:
    prefix = "rbac.authorization.k8s.io/aggregate-to-"

    def joined(values: dict[str, Any], role: str) -> set[str]:
        labels = named(render(values), "ClusterRole", f"tartlet:prod:tartlet:{role}")["metadata"]["labels"]
        return {k.removeprefix(prefix) for k in labels if k.startswith(prefix)}

    assert joined({}, "viewer") == {"view", "edit", "admin"}
    assert joined({}, "editor") == {"edit", "admin"}
    assert joined({"userRoles": {"aggregate": False}}, "editor") == set()
    assert not of_kind(render({"userRoles": {"enabled": False}}), "ClusterRole")
