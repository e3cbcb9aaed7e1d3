"""Values that the chart refuses, and the name in its message."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.chart.render import CHART, named, refusal, render

_POOL: dict[str, Any] = {"name": "a", "spec": {"model": {"name": "m"}}}


@pytest.mark.parametrize(
    ("values", "named_in_message"),
    [
        ({"imagee": {}}, "imagee"),
        ({"image": {"tags": "v1"}}, "tags"),
        ({"runtime": {"replicas": 0}}, "replicas"),
        ({"runtime": {"replicas": "two"}}, "replicas"),
        ({"control": {"replicas": 0}}, "replicas"),
        ({"control": {"settings": {"polici": "eager"}}}, "polici"),
        ({"control": {"settings": {"batching": "lazy"}}}, "batching"),
        ({"control": {"settings": {"policy_k": 4}}}, "called batching_k now"),
        ({"control": {"settings": {"address": "0.0.0.0:1"}}}, "address"),
        ({"operator": {"settings": {"tls_key": "/x"}}}, "tls_key"),
        ({"operator": {"settings": {"source_hosts": "https://example.org/"}}}, "source_hosts"),
        ({"runtime": {"settings": {"capacity": 0}}}, "capacity"),
        ({"certificates": {"provider": "none"}}, "provider"),
        ({"certificates": {"enabled": False}}, "enabled"),
        ({"certificates": {"days": 5000}}, "certificates.days: at most certificates.authorityDays"),
        ({"networkPolicy": {"apiServer": {"cidrs": []}}}, "cidrs"),
        ({"networkPolicy": {"apiServer": {"cidrs": ["everywhere"]}}}, "cidrs"),
        ({"enginePools": [{"name": "Upper", "spec": {"model": {"name": "m"}}}]}, "name"),
        ({"enginePools": [{"name": "a"}]}, "spec"),
        ({"enginePools": [_POOL | {"spec": {**_POOL["spec"], "replica": 2}}]}, "replica"),
        ({"enginePools": [_POOL | {"spec": {**_POOL["spec"], "engine": {"backed": "Fake"}}}]}, "backed"),
        ({"enginePools": [_POOL | {"spec": {**_POOL["spec"], "engine": {"backend": "fake"}}}]}, "backend"),
        ({"log": {"level": "verbose"}}, "level"),
        ({"crds": {"install": True}}, "install"),
        ({"fullnameOverride": "Not-A-Name"}, "fullnameOverride"),
        ({"clusterDomain": "cluster local"}, "clusterDomain"),
        ({"clusterDomain": "cluster.local."}, "clusterDomain"),
        ({"redis": {"runAsUser": 0}}, "runAsUser"),
        ({"control": {"directory": {"store": "files"}}}, "store"),
        ({"control": {"directory": {"store": "external"}}}, "control.directory.external.url is empty"),
        ({"control": {"directory": {"external": {"url": "redis://user:secret@example.org"}}}}, "url"),
        ({"control": {"settings": {"directory_url": "redis://example.org"}}}, "directory_url"),
        ({"journals": {"store": "memory"}}, "store"),
        ({"journals": {"redis": {"appendfsync": "no"}}}, "appendfsync"),
        ({"journals": {"store": "external"}}, "journals.external.url is empty"),
        ({"journals": {"external": {"url": "rediss://user:secret@example.org"}}}, "url"),
        ({"runtime": {"settings": {"journal_url": "redis://example.org"}}}, "journal_url"),
        ({"image": {"tag": "a b"}}, "tag"),
        ({"image": {"repository": "registry.example:5000/tartlet:v1"}}, "repository"),
        ({"image": {"repository": "ghcr.io/Acme/tartlet"}}, "repository"),
        ({"workerImage": {"repository": "ghcr.io//tartlet"}}, "repository"),
        ({"runtime": {"scratchSize": "1 Gi"}}, "scratchSize"),
        ({"commonLabels": {"team": "a b"}}, "team"),
        ({"commonLabels": {"a team": "b"}}, "'a team' does not match"),
        ({"commonLabels": {"app.kubernetes.io/name": "other"}}, "app.kubernetes.io/name"),
        ({"runtime": {"nodeSelector": {"kubernetes.io/arch": "amd 64"}}}, "nodeSelector"),
    ],
)
def test_the_schema_refuses_unknown_and_wrong_values(values: dict[str, Any], named_in_message: str) -> None:
    assert named_in_message in refusal(values)


@pytest.mark.parametrize(
    ("values", "named_in_message"),
    [
        ({"networkPolicy": {"apiServer": {"ports": None}}}, "networkPolicy.apiServer.ports is empty"),
        ({"networkPolicy": {"dns": {"to": None}}}, "networkPolicy.dns.to is empty"),
        ({"monitoring": {"podMonitor": {"enabled": True}, "from": None}}, "monitoring.from is empty"),
        ({"certificates": {"provider": "certManager", "issuerRef": {"kind": "ClusterIssuer"}}}, "issuerRef"),
    ],
)
def test_what_would_mean_everybody_or_nobody_is_refused(values: dict[str, Any], named_in_message: str) -> None:
    assert named_in_message in refusal(values)


def _nulled(values: dict[str, Any], schema: dict[str, Any], depth: int, at: str = "") -> tuple[dict[str, Any], Any]:
    """Yield these values with null for each section at a depth, or for each scalar (0), and the path of the null."""
    out: dict[str, Any] = {}
    where: list[tuple[str, str]] = []
    for key, value in values.items():
        section = isinstance(value, dict) and value and "properties" in schema[key]
        if (section and depth == 1) or (depth == 0 and not isinstance(value, (dict, list))):
            out[key] = None
            where.append((at, key))
        elif section:
            out[key], inner = _nulled(value, schema[key]["properties"], max(depth - 1, 0), f"{at}/{key}")
            where += inner
    return out, where


@pytest.mark.parametrize(("depth", "least"), [(0, 40), (1, 14), (2, 8)])
def test_null_is_refused_where_a_value_is_required(depth: int, least: int) -> None:
    """Helm treats such a null as a missing value."""
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())["properties"]
    values, where = _nulled(yaml.safe_load((CHART / "values.yaml").read_text()), schema, depth)
    said = refusal(values).splitlines()
    assert len(where) >= least
    for at, key in where:
        assert [s for s in said if f"- at '{at}': missing propert" in s and f"'{key}'" in s], (at, key, said)


def test_null_in_place_of_a_list_or_map_means_empty() -> None:
    role = dict.fromkeys(("settings", "extraEnv", "extraVolumes", "extraVolumeMounts", "podLabels", "tolerations"))
    values: dict[str, Any] = {**dict.fromkeys(("commonLabels", "imagePullSecrets", "enginePools")), "control": role}
    values["certificates"] = dict.fromkeys(("runtimeNames", "issuerRef"))
    objects = render({**values, "operator": {**role, "namespaces": None}})
    assert "nil" not in str(objects)
    assert named(objects, "Deployment", "tartlet-control")
