"""Where the chart lets runtimes keep journals: in a Redis of its own, or in the user's."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tartlet_common.config.settings import RuntimeSettings
from tests.chart.render import named, of_kind, render
from tests.redis_server import redis_server


def runtime_pod(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the spec of a runtime's pod, and its environment by name."""
    spec = named(render(values), "Deployment", "tartlet-runtime")["spec"]["template"]["spec"]
    return spec, {e["name"]: e.get("value", "") for e in spec["containers"][0]["env"]}


def journal_settings(env: dict[str, Any]) -> RuntimeSettings:
    prefix = "TARTLET_RUNTIME_"
    given = {k.removeprefix(prefix).lower(): v for k, v in env.items() if k.startswith(f"{prefix}JOURNAL_")}
    return RuntimeSettings(control="control:7443", address="0.0.0.0:7444", **given)


def test_runtimes_keep_journals_in_files_unless_told_otherwise() -> None:
    _, env = runtime_pod({})
    assert journal_settings(env).journal_url == ""
    assert not of_kind(render({}), "StatefulSet")


def test_the_redis_of_the_chart_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    """A server started with the options of the pod writes each record before its answer, and never evicts."""
    objects = render({"journals": {"store": "redis", "redis": {"maxMemory": "64mb"}}})
    made = named(objects, "StatefulSet", "tartlet-journals")
    (container,) = made["spec"]["template"]["spec"]["containers"]
    (claim,) = made["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert {"name": claim["metadata"]["name"], "mountPath": "/data"} in container["volumeMounts"]
    program, *options = container["command"]
    assert program == "redis-server"
    assert options[options.index("--dir") + 1] == "/data"
    options[options.index("--dir") + 1] = str(tmp_path)
    with redis_server(tmp_path, *options) as server:
        asked = ("protected-mode", "appendonly", "appendfsync", "maxmemory", "maxmemory-policy", "save", "dir")
        get = ["redis-cli", "-p", str(server.port), "CONFIG", "GET", *asked]
        lines = subprocess.run(get, capture_output=True, text=True, timeout=10, check=True).stdout.splitlines()
    assert dict(zip(lines[::2], lines[1::2], strict=True)) == {
        "protected-mode": "no",
        "appendonly": "yes",
        "appendfsync": "always",
        "maxmemory": str(64 << 20),
        "maxmemory-policy": "noeviction",
        "save": "",
        "dir": str(tmp_path),
    }
    _, env = runtime_pod({"journals": {"store": "redis"}})
    service = named(objects, "Service", "tartlet-journals")
    assert service["spec"]["selector"].items() <= made["spec"]["template"]["metadata"]["labels"].items()
    settings = journal_settings(env)
    assert settings.journal_url == "redis://tartlet-journals.prod.svc.cluster.local:6379"
    assert settings.journal_grace_s == 120.0  # time for the pod to move to another node
    _, env = runtime_pod({"journals": {"store": "redis"}, "runtime": {"settings": {"journal_grace_s": 7.5}}})
    assert journal_settings(env).journal_grace_s == 7.5


@pytest.mark.parametrize("authority", ["", "ca.pem"])
def test_a_redis_of_the_user_gets_its_password_and_authority_from_a_secret(authority: str) -> None:
    url = "rediss://tartlet@redis.data.svc:6380/2"
    external = {"url": url, "secretName": "journals", "passwordKey": "redis-password", "authorityKey": authority}
    values = {"journals": {"store": "external", "external": external}}
    spec, env = runtime_pod(values)
    settings = journal_settings(env)
    (volume,) = [v for v in spec["volumes"] if v["name"] == "journals"]
    (mount,) = [m for m in spec["containers"][0]["volumeMounts"] if m["name"] == "journals"]
    files = {f"{mount['mountPath']}/{i['path']}": i["key"] for i in volume["secret"]["items"]}
    assert settings.journal_url == url
    assert files[str(settings.journal_password_file)] == "redis-password"
    assert (files[str(settings.journal_authority)] if settings.journal_authority else "") == authority
    assert not of_kind(render(values), "StatefulSet")
