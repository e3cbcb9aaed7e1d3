"""Two controls of the chart: what makes them one leader and one standby, and that both can be reached and replaced."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.cluster.network import flows
from e2e.cluster.network.netpol import Flow, Policies
from tartlet_common.config.settings import ControlSettings
from tests.chart.render import named, of_kind, refusal, render

TWO: dict[str, Any] = {"control": {"replicas": 2}}
NAMESPACES: dict[str, dict[str, str]] = {"prod": {}, "kube-system": {}}


def control(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], ControlSettings]:
    """Return the spec of control's Deployment, its environment by name, and the settings that follow from it."""
    spec = named(render(values), "Deployment", "tartlet-control")["spec"]
    env = {e["name"]: e for e in spec["template"]["spec"]["containers"][0]["env"]}
    prefix = "TARTLET_CONTROL_"
    given = {k.removeprefix(prefix).lower(): e.get("value", "") for k, e in env.items() if k.startswith(prefix)}
    return spec, env, ControlSettings(**given)


def test_one_control_has_no_lease_and_never_runs_beside_another() -> None:
    spec, env, settings = control({})
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert (settings.lease_url, settings.advertise) == ("", "")
    assert "POD_IP" not in env
    assert not [o for o in of_kind(render({}), "PodDisruptionBudget") if o["metadata"]["name"] == "tartlet-control"]


def test_two_controls_have_a_lease_an_address_each_and_are_replaced_one_by_one() -> None:
    spec, env, settings = control(TWO)
    assert spec["replicas"] == 2
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    assert settings.lease_url == "redis://tartlet-redis.prod.svc.cluster.local:6379"
    assert settings.directory_release == "prod/tartlet"
    assert (settings.directory_url, settings.advertise) == ("", "$(POD_IP):7443")
    assert env["POD_IP"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
    assert list(env).index("POD_IP") < list(env).index("TARTLET_CONTROL_ADVERTISE"), "only earlier names are replaced"
    objects = render(TWO)
    budget = named(objects, "PodDisruptionBudget", "tartlet-control")["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert budget["maxUnavailable"] == 1
    for selector in (
        budget["selector"]["matchLabels"],
        named(objects, "Service", "tartlet-control")["spec"]["selector"],
    ):
        assert selector.items() <= labels.items()
    (spread,) = spec["template"]["spec"]["topologySpreadConstraints"]
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    assert named(objects, "Deployment", "tartlet-redis")


def test_two_controls_reach_each_other_and_their_redis_and_nobody_else_more_than_before() -> None:
    def rules(values: dict[str, Any]) -> Policies:
        return Policies(of_kind(render(values), "NetworkPolicy"), NAMESPACES)

    one, two = rules({}), rules(TWO)
    pod, redis, dns = flows.role("control", "tartlet", "prod"), flows.role("redis", "tartlet", "prod"), flows.DNS
    for needed in (Flow(pod, pod, 7443), Flow(pod, redis, 6379), Flow(pod, dns, 53, "UDP")):
        assert two.allow(needed)
        assert not one.allow(needed)
    assert not two.allow(Flow(flows.role("runtime", "tartlet", "prod"), redis, 6379))
    assert not two.allow(Flow(pod, flows.role("runtime", "tartlet", "prod"), 7444))
    for name, flow in flows.must_pass("tartlet", "prod"):
        assert two.refusals(flow) == [], name
    for name, flow in flows.must_not_pass("tartlet", "prod"):
        assert two.refusals(flow) or flow.target is dns, name  # control looks up its Redis


@pytest.mark.parametrize("authority", ["", "ca.pem"])
def test_a_lease_in_a_redis_of_the_user_takes_its_password_and_authority_from_a_secret(authority: str) -> None:
    url = "rediss://tartlet@redis.data.svc:6380/3"
    external = {"url": url, "secretName": "lease", "authorityKey": authority}
    values = {"control": {"replicas": 2, "lease": {"store": "external", "external": external}}}
    spec, _, settings = control(values)
    (volume,) = [v for v in spec["template"]["spec"]["volumes"] if v["name"] == "lease"]
    (mount,) = [m for m in spec["template"]["spec"]["containers"][0]["volumeMounts"] if m["name"] == "lease"]
    assert volume["secret"]["secretName"] == "lease"
    files = {f"{mount['mountPath']}/{i['path']}": i["key"] for i in volume["secret"]["items"]}
    assert settings.lease_url == url
    assert files[str(settings.lease_password_file)] == "password"
    assert (files[str(settings.lease_ca_file)] if settings.lease_ca_file else "") == authority
    assert not [o for o in of_kind(render(values), "Deployment") if o["metadata"]["name"] == "tartlet-redis"]


def test_several_controls_without_a_redis_are_refused() -> None:
    lease = {"store": "external"}
    assert "control.lease.external.url is empty" in refusal({"control": {"replicas": 2, "lease": lease}})
    assert "replicas" in refusal({"control": {"replicas": 0}})
