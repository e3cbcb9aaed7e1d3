"""Values of what programs reach, HTTP hosts and what they share: none by default; hosts open egress."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.cluster.network import flows
from e2e.cluster.network.netpol import Flow, Host, Policies
from tartlet_common.capabilities import SHARED, Ceilings, Grant, SharedCeilings
from tartlet_common.config.lists import listed
from tartlet_common.config.settings import RuntimeSettings
from tartlet_common.egress.addresses import Exceptions
from tartlet_runtime.web.secrets import Secrets
from tests.chart.render import named, of_kind, refusal, render

HTTP = {
    "hosts": ["*.example.org", "team-a=https://api.example.com:8443"],
    "privateHosts": ["10.1.0.0/16", "tools.example.org"],
    "ports": [443, 8443],
    "secretName": "keys",
    "secrets": ["openai=api.example.com", "team-a/key=*.example.org"],
}


def runtime(values: dict[str, Any] | None) -> tuple[dict[str, str], dict[str, Any]]:
    pod = named(render(values), "Deployment", "tartlet-runtime")["spec"]["template"]["spec"]
    env = {v["name"]: v["value"] for v in pod["containers"][0]["env"] if "value" in v}
    return env, pod


def reaches(values: dict[str, Any] | None, address: str, port: int) -> bool:
    policies = Policies(of_kind(render(values), "NetworkPolicy"), {"prod": {}})
    return not policies.refusals(Flow(flows.role("runtime", "tartlet", "prod"), Host(address), port))


def test_by_default_programs_reach_no_host_and_runtimes_no_address() -> None:
    env, pod = runtime(None)
    assert not [name for name in env if name.startswith("TARTLET_RUNTIME_HTTP")]
    assert "secrets" not in {volume["name"] for volume in pod["volumes"]}
    assert not reaches(None, "93.184.216.34", 443)


def test_values_are_settings_that_the_runtime_reads() -> None:
    env, pod = runtime({"runtime": {"http": HTTP}})
    given = {name.removeprefix("TARTLET_RUNTIME_").lower(): value for name, value in env.items() if "_HTTP_" in name}
    settings = RuntimeSettings(**given)
    assert Ceilings.of(listed(settings.http_hosts)).of_tenant("team-a").http == (
        "*.example.org",
        "https://api.example.com:8443",
    )
    assert Exceptions.of(listed(settings.http_private_hosts)).open("tools.example.org", 443)
    Secrets.of(settings.http_secrets_dir, listed(settings.http_secrets))
    mounts = {mount["name"]: mount for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts["secrets"] == {"name": "secrets", "mountPath": str(settings.http_secrets_dir), "readOnly": True}
    assert {"name": "secrets", "secret": {"secretName": "keys", "defaultMode": 0o444}} in pod["volumes"]


def test_hosts_open_public_addresses_and_named_networks_at_the_ports() -> None:
    values = {"runtime": {"http": HTTP}}
    for address, port, passes in (
        ("93.184.216.34", 443, True),
        ("93.184.216.34", 8443, True),
        ("93.184.216.34", 80, False),
        ("10.1.2.3", 443, True),
        ("10.2.2.3", 443, False),
        ("169.254.169.254", 443, False),
        ("192.168.1.1", 443, False),
    ):
        assert reaches(values, address, port) is passes, (address, port)


PROXY = {
    "hosts": ["*"],
    "proxy": "http://proxy.example.org:3128",
    "proxyNetworks": ["10.1.2.0/24"],
    "authority": {"secretName": "cas", "key": "all.pem"},
}


def test_a_proxy_and_its_authority_are_settings_that_the_runtime_reads() -> None:
    env, pod = runtime({"runtime": {"http": PROXY}})
    given = {name.removeprefix("TARTLET_RUNTIME_").lower(): value for name, value in env.items() if "_HTTP_" in name}
    settings = RuntimeSettings(**given)
    assert settings.http_proxy == PROXY["proxy"]
    mounts = {mount["name"]: mount for mount in pod["containers"][0]["volumeMounts"]}
    assert f"{mounts['http-authority']['mountPath']}/all.pem" == str(settings.http_authority)
    [volume] = [volume for volume in pod["volumes"] if volume["name"] == "http-authority"]
    assert volume["secret"]["secretName"] == "cas"
    assert volume["secret"]["items"] == [{"key": "all.pem", "path": "all.pem"}]


def test_with_a_proxys_networks_runtimes_reach_the_proxy_alone() -> None:
    values = {"runtime": {"http": PROXY}}
    for address, port, passes in (
        ("10.1.2.3", 3128, True),
        ("10.1.2.3", 443, False),
        ("10.1.3.3", 3128, False),
        ("93.184.216.34", 443, False),
        ("93.184.216.34", 3128, False),
    ):
        assert reaches(values, address, port) is passes, (address, port)
    unnamed = {"runtime": {"http": PROXY | {"proxyNetworks": []}}}
    assert reaches(unnamed, "93.184.216.34", 443), "nobody says where the proxy is"


@pytest.mark.parametrize("secrets", [["a/key=x.test", "b/key=y.test"], ["key=x.test", "a/key=y.test"]])
def test_a_key_that_two_owners_bind_is_refused_before_a_runtime_is(secrets: list[str]) -> None:
    assert "key" in refusal({"runtime": {"http": {"secretName": "keys", "secrets": secrets}}})


def test_secrets_without_a_secret_and_hosts_that_are_none_are_refused() -> None:
    assert "secretName" in refusal({"runtime": {"http": {"secrets": ["a=b.test"]}}})
    mistakes: list[dict[str, Any]] = [
        {"hosts": ["a, b"]},
        {"hosts": "a"},
        {"ports": []},
        {"secrets": ["a"]},
        {"host": ["a"]},
        {"proxy": "proxy.example.org:3128"},
        {"proxy": "http://user:word@proxy.example.org:3128"},
        {"proxyNetworks": ["10.1.2.0/24"]},
        {"proxy": "http://proxy.example.org:3128", "proxyNetworks": ["proxy.example.org"]},
        {"authority": {"secretName": "cas", "key": "../ca.crt"}},
    ]
    for wrong in mistakes:
        assert refusal({"runtime": {"http": wrong}})


def ceilings(values: dict[str, Any] | None) -> SharedCeilings:
    pod = named(render(values), "Deployment", "tartlet-control")["spec"]["template"]["spec"]
    env = {v["name"]: v.get("value") for v in pod["containers"][0]["env"]}
    return SharedCeilings.of({what: listed(env[f"TARTLET_CONTROL_ALLOWED_{what.upper()}"]) for what in SHARED})


def said(grant: Grant) -> dict[str, tuple[str, ...] | None]:
    return {what: getattr(grant, what) for what in SHARED}


def test_by_default_programs_share_nothing_and_start_nothing() -> None:
    assert said(ceilings(None).of_tenant("team-a")) == dict.fromkeys(SHARED, ())


def test_the_values_are_settings_that_control_reads() -> None:
    allowed = {"topics": ["jobs.*", "team-a=log"], "names": ["*"], "spawn": ["team-a=reader"]}
    found = ceilings({"control": {"allowed": allowed}})
    assert said(found.of_tenant("team-a")) == {"topics": ("jobs.*", "log"), "names": None, "spawn": ("reader",)}
    assert said(found.of_tenant("team-b")) == {"topics": ("jobs.*",), "names": None, "spawn": ()}


def test_what_is_no_pattern_is_refused_by_the_schema() -> None:
    assert "topics" in refusal({"control": {"allowed": {"topics": ["a,b"]}}})
    assert "others" in refusal({"control": {"allowed": {"others": []}}})
