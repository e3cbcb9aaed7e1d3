"""Where the chart lets control keep the page directory: in its memory, in a Redis of the chart's, or in the user's."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tartlet_common.config.settings import ControlSettings
from tests.chart.render import named, of_kind, render
from tests.redis_server import redis_server


def control_pod(values: dict[str, Any]) -> tuple[dict[str, Any], ControlSettings]:
    """Return the spec of control's pod, and what its environment sets of the directory."""
    spec = named(render(values), "Deployment", "tartlet-control")["spec"]["template"]["spec"]
    prefix = "TARTLET_CONTROL_"
    env = {e["name"]: e.get("value", "") for e in spec["containers"][0]["env"]}
    given = {k.removeprefix(prefix).lower(): v for k, v in env.items() if k.startswith(f"{prefix}DIRECTORY_")}
    return spec, ControlSettings(address="0.0.0.0:7443", **given)


def test_control_keeps_the_directory_in_memory_unless_told_otherwise() -> None:
    _, settings = control_pod({})
    assert settings.directory_url == ""
    assert not [each for each in of_kind(render({}), "Deployment") if each["metadata"]["name"] == "tartlet-redis"]


def test_the_redis_of_the_chart_writes_no_disk_and_evicts_nothing(tmp_path: Path) -> None:
    values = {"control": {"directory": {"store": "redis"}}, "redis": {"maxMemory": "64mb"}}
    objects = render(values)
    made = named(objects, "Deployment", "tartlet-redis")
    (container,) = made["spec"]["template"]["spec"]["containers"]
    program, *options = container["command"]
    assert program == "redis-server"
    with redis_server(tmp_path, *options) as server:
        asked = ("protected-mode", "appendonly", "save", "maxmemory", "maxmemory-policy")
        get = ["redis-cli", "-p", str(server.port), "CONFIG", "GET", *asked]
        lines = subprocess.run(get, capture_output=True, text=True, timeout=10, check=True).stdout.splitlines()
    expected = {
        "protected-mode": "no",
        "appendonly": "no",
        "save": "",
        "maxmemory": str(64 << 20),
        "maxmemory-policy": "noeviction",
    }
    assert dict(zip(lines[::2], lines[1::2], strict=True)) == expected
    service = named(objects, "Service", "tartlet-redis")
    assert service["spec"]["selector"].items() <= made["spec"]["template"]["metadata"]["labels"].items()
    _, settings = control_pod(values)
    assert settings.directory_url == "redis://tartlet-redis.prod.svc.cluster.local:6379"
    assert settings.directory_release == "prod/tartlet"


@pytest.mark.parametrize("authority", ["", "ca.pem"])
def test_a_redis_of_the_user_gets_its_password_and_authority_from_a_secret(authority: str) -> None:
    url = "rediss://tartlet@redis.data.svc:6380/2"
    external = {"url": url, "secretName": "pages", "passwordKey": "redis-password", "authorityKey": authority}
    values = {"control": {"directory": {"store": "external", "external": external}}}
    spec, settings = control_pod(values)
    (volume,) = [v for v in spec["volumes"] if v["name"] == "directory"]
    (mount,) = [m for m in spec["containers"][0]["volumeMounts"] if m["name"] == "directory"]
    assert volume["secret"]["secretName"] == "pages"
    files = {f"{mount['mountPath']}/{i['path']}": i["key"] for i in volume["secret"]["items"]}
    assert settings.directory_url == url
    assert files[str(settings.directory_password_file)] == "redis-password"
    assert (files[str(settings.directory_ca_file)] if settings.directory_ca_file else "") == authority
    assert not [each for each in of_kind(render(values), "Deployment") if each["metadata"]["name"] == "tartlet-redis"]
