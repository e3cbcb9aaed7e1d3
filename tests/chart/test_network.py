"""The chart's NetworkPolicies let required flows pass and no others; and the evaluator itself."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from e2e.cluster.network import flows
from e2e.cluster.network.netpol import Flow, Host, Pod, Policies, selects
from tests.chart.render import named, of_kind, pods, render

NAMESPACES: dict[str, dict[str, str]] = {n: {} for n in ("prod", "elsewhere", "kube-system", "monitoring", "team-a")}
PASS = dict(flows.must_pass("tartlet", "prod"))
REFUSE = dict(flows.must_not_pass("tartlet", "prod"))


def policies(values: dict[str, Any] | None = None) -> Policies:
    return Policies(of_kind(render(values), "NetworkPolicy"), NAMESPACES)


@pytest.fixture(scope="module")
def default() -> Policies:
    return policies()


@pytest.mark.parametrize("name", PASS)
def test_what_tartlet_needs_gets_through(default: Policies, name: str) -> None:
    assert default.refusals(PASS[name]) == []


@pytest.mark.parametrize("name", REFUSE)
def test_all_other_traffic_is_refused(default: Policies, name: str) -> None:
    assert default.refusals(REFUSE[name])


def test_every_pod_of_the_chart_is_isolated_both_ways() -> None:
    objects = render({"control": {"directory": {"store": "redis"}}})
    rules = Policies(of_kind(objects, "NetworkPolicy"), NAMESPACES)
    for name, metadata, _ in pods(objects):
        pod = Pod("prod", metadata["labels"])
        assert rules.selecting(pod, "Ingress"), name
        assert rules.selecting(pod, "Egress"), name


def test_the_documented_roles_match_the_rendered_ones() -> None:
    """The lists use the labels that pods carry."""
    for role in ("control", "runtime", "operator"):
        labels = named(render(), "Deployment", f"tartlet-{role}")["spec"]["template"]["metadata"]["labels"]
        assert flows.role(role, "tartlet", "prod").labels.items() <= labels.items()


def test_the_documented_worker_matches_the_operators() -> None:
    from tartlet_operator.api.meta import pool_labels

    assert flows.role("worker", "tartlet", "prod").labels == pool_labels("demo")


def test_other_pods_of_the_namespace_are_left_alone(default: Policies) -> None:
    web, database = Pod("prod", {"app": "web"}), Pod("prod", {"app": "db"})
    assert default.allow(Flow(web, database, 5432))
    assert default.allow(Flow(web, Host(flows.WORLD), 443))


def test_workers_of_a_watched_namespace_reach_control_and_others_do_not() -> None:
    rules = policies({"operator": {"namespaces": ["team-a"]}})
    control = flows.role("control", "tartlet", "prod")
    assert rules.allow(Flow(flows.role("worker", "tartlet", "team-a"), control, 7443))
    assert not rules.allow(Flow(flows.role("worker", "tartlet", "elsewhere"), control, 7443))
    assert not rules.allow(Flow(flows.role("worker", "tartlet", "team-a"), Host(flows.WORLD), 443))


def test_only_prometheus_reads_metrics_and_only_where_asked() -> None:
    prometheus = Pod("monitoring", {"app": "prometheus"})
    runtime = flows.role("runtime", "tartlet", "prod")
    assert not policies().allow(Flow(prometheus, runtime, 8080))
    asked = policies({"monitoring": {"podMonitor": {"enabled": True}}})
    assert asked.allow(Flow(prometheus, runtime, 8080))
    assert not asked.allow(Flow(prometheus, runtime, 7444))
    assert not asked.allow(Flow(Pod("prod", {"app": "prometheus"}), runtime, 8080))


def test_only_control_reaches_redis() -> None:
    rules = policies({"control": {"directory": {"store": "redis"}}})
    redis, control = flows.role("redis", "tartlet", "prod"), flows.role("control", "tartlet", "prod")
    assert rules.allow(Flow(control, redis, 6379))
    assert not policies().allow(Flow(control, redis, 6379))
    for other in ("runtime", "worker", "operator", "test"):
        assert not rules.allow(Flow(flows.role(other, "tartlet", "prod"), redis, 6379))
    assert not rules.allow(Flow(redis, Host(flows.WORLD), 443))


def test_only_runtimes_reach_the_redis_of_journals() -> None:
    rules = policies({"journals": {"store": "redis"}, "control": {"directory": {"store": "redis"}}})
    needed = dict(flows.journals_pass("tartlet", "prod"))
    assert [name for name, flow in needed.items() if not rules.allow(flow)] == []
    assert [name for name, flow in flows.journals_must_not_pass("tartlet", "prod") if rules.allow(flow)] == []
    assert not policies().allow(needed["runtime to journals"])


def test_a_gateway_is_reached_from_its_namespace_or_as_asked_and_dials_runtimes_and_control() -> None:
    enabled = {"gateway": {"enabled": True, "keys": {"secretName": "keys"}}}
    rules = policies(enabled)
    gateway, web = flows.role("gateway", "tartlet", "prod"), Pod("prod", {"app": "web"})
    for caller in (flows.role("test", "tartlet", "prod"), web):
        assert rules.allow(Flow(caller, gateway, 8200))
        assert not rules.allow(Flow(caller, gateway, 8080))
    assert rules.allow(Flow(gateway, flows.role("runtime", "tartlet", "prod"), 7444))
    assert rules.allow(Flow(gateway, flows.role("control", "tartlet", "prod"), 7443))  # for the catalogue
    assert not policies().allow(Flow(gateway, flows.role("control", "tartlet", "prod"), 7443))
    assert rules.allow(Flow(gateway, flows.DNS, 53, "UDP"))
    ingress = Pod("elsewhere", {"app": "ingress"})
    assert not rules.allow(Flow(ingress, gateway, 8200))
    for target, port in ((Host(flows.WORLD), 443), (flows.role("worker", "tartlet", "prod"), 7443), (web, 80)):
        assert not rules.allow(Flow(gateway, target, port))
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "elsewhere"}}}
    asked = Policies(
        of_kind(render({**enabled, "networkPolicy": {"gateway": {"from": [peer]}}}), "NetworkPolicy"),
        {name: {"kubernetes.io/metadata.name": name} for name in NAMESPACES},
    )
    assert asked.allow(Flow(ingress, gateway, 8200))
    assert not asked.allow(Flow(web, gateway, 8200))


def test_the_api_server_can_be_narrowed_to_its_addresses() -> None:
    rules = policies({"networkPolicy": {"apiServer": {"cidrs": [f"{flows.API_SERVER}/32"], "ports": [6443]}}})
    operator = flows.role("operator", "tartlet", "prod")
    assert rules.allow(Flow(operator, Host(flows.API_SERVER), 6443))
    assert not rules.allow(Flow(operator, Host(flows.WORLD), 443))


@pytest.mark.parametrize("role", ["control", "runtime", "worker", "operator", "gateway"])
def test_each_role_accepts_additional_network_rules(role: str) -> None:
    collector = {"to": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "otel"}}}]}
    enabled = {"enabled": True, "keys": {"secretName": "keys"}}
    rules = policies({"gateway": enabled, "networkPolicy": {role: {"extraEgress": [collector]}}})
    target = Pod("elsewhere", {"app": "otel"})
    assert rules.allow(Flow(flows.role(role, "tartlet", "prod"), target, 4317))
    for other in {"control", "runtime", "worker", "operator", "gateway"} - {role}:
        assert not rules.allow(Flow(flows.role(other, "tartlet", "prod"), target, 4317))


def test_policies_can_be_turned_off() -> None:
    assert not of_kind(render({"networkPolicy": {"enabled": False}}), "NetworkPolicy")


# ---- the evaluator ----------------------------------------------------------------------------------------------


def _policy(spec: dict[str, Any], namespace: str = "a") -> dict[str, Any]:
    return {"metadata": {"name": "p", "namespace": namespace}, "spec": {"podSelector": {}, **spec}}


def _rules(*each: dict[str, Any]) -> Policies:
    return Policies(each, {"a": {}, "b": {"team": "blue"}})


A, B = Pod("a", {"x": "1"}, ip="10.0.0.1", ports={"web": 80}), Pod("b", {"x": "2"}, ip="10.0.0.2")


def test_without_policies_all_is_open() -> None:
    assert _rules().allow(Flow(A, B, 80))


def test_a_policy_without_types_closes_ingress_and_leaves_egress_open() -> None:
    rules = _rules(_policy({}))
    assert not rules.allow(Flow(B, A, 80))
    assert rules.allow(Flow(A, B, 80))


def test_a_policy_with_egress_rules_and_no_types_closes_both() -> None:
    rules = _rules(_policy({"egress": [{"ports": [{"port": 53, "protocol": "UDP"}]}]}))
    assert not rules.allow(Flow(B, A, 80))
    assert not rules.allow(Flow(A, B, 80))
    assert rules.allow(Flow(A, B, 53, "UDP"))


def test_policies_are_additive() -> None:
    rules = _rules(_policy({}), _policy({"ingress": [{}]}))
    assert rules.allow(Flow(B, A, 80))


def test_both_ends_must_agree() -> None:
    deny_out = _policy({"policyTypes": ["Egress"]}, "b")
    assert not _rules(_policy({"ingress": [{}]}), deny_out).allow(Flow(B, A, 80))


def test_a_peer_without_namespace_selector_is_of_the_policys_namespace() -> None:
    rules = _rules(_policy({"ingress": [{"from": [{"podSelector": {}}]}]}))
    assert not rules.allow(Flow(B, A, 80))
    assert rules.allow(Flow(Pod("a", {}), A, 80))


def test_selectors_of_one_peer_must_both_match() -> None:
    peer = {"namespaceSelector": {"matchLabels": {"team": "blue"}}, "podSelector": {"matchLabels": {"x": "2"}}}
    rules = _rules(_policy({"ingress": [{"from": [peer]}]}))
    assert rules.allow(Flow(B, A, 80))
    assert not rules.allow(Flow(dataclasses.replace(B, labels={}), A, 80))


def test_blocks_hold_addresses_less_their_exceptions() -> None:
    block = {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}
    rules = _rules(_policy({"policyTypes": ["Egress"], "egress": [{"to": [block]}]}))
    assert rules.allow(Flow(A, Host("10.2.3.4"), 80))
    assert not rules.allow(Flow(A, Host("10.1.3.4"), 80))
    assert not rules.allow(Flow(A, Host("fd00::1"), 80))


def test_ports_by_name_range_and_protocol() -> None:
    by_name = _rules(_policy({"ingress": [{"ports": [{"port": "web"}]}]}))
    assert by_name.allow(Flow(B, A, 80))
    assert not by_name.allow(Flow(B, A, 81))
    by_range = _rules(_policy({"ingress": [{"ports": [{"port": 80, "endPort": 90, "protocol": "TCP"}]}]}))
    assert by_range.allow(Flow(B, A, 90))
    assert not by_range.allow(Flow(B, A, 91))
    assert not by_range.allow(Flow(B, A, 85, "UDP"))


def test_a_pods_own_node_cannot_be_refused_and_another_can() -> None:
    rules = _rules(_policy({"policyTypes": ["Ingress", "Egress"]}))
    here = dataclasses.replace(A, node="10.9.0.1")
    assert rules.allow(Flow(Host("10.9.0.1"), here, 80))
    assert not rules.allow(Flow(Host("10.9.0.2"), here, 80))


def test_selectors_expressions() -> None:
    def matches(operator: str, values: tuple[str, ...] = ()) -> bool:
        return selects({"matchExpressions": [{"key": "x", "operator": operator, "values": values}]}, {"x": "1"})

    assert matches("In", ("1",))
    assert not matches("NotIn", ("1",))
    assert matches("Exists")
    assert not matches("DoesNotExist")
    with pytest.raises(ValueError, match="Gt"):
        matches("Gt", ("0",))
