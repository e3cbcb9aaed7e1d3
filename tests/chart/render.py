"""Renders the chart with Helm and finds objects in the result."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.artifacts.toolchain import helm_path
from e2e.cluster.layout import HELM, default_layout
from tests.lacking import lacking

CHART = Path(__file__).resolve().parents[2] / "charts" / "tartlet"

KUBERNETES = ("--kube-version", "1.31.0")  # whatever the helm that is there takes for one
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def helm() -> str:
    """The machine's Helm, or the one that was built for the cluster; without either the test ends as `lacking` says."""
    found = helm_path(default_layout())
    if not os.access(found, os.X_OK):
        lacking(f"no helm: run `python -m e2e.cluster build`, or go install helm.sh/helm/v3/cmd/helm@{HELM}")
    return str(found)


def run(*args: str, values: Mapping[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    """Run Helm with these arguments, and values on its standard input."""
    command = [helm(), *args, *(["--values", "-"] if values is not None else [])]
    text = json.dumps(dict(values)) if values is not None else None  # YAML's numbers are more to Helm
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)


def render(
    values: Mapping[str, Any] | None = None, *, release: str = "tartlet", namespace: str = "prod"
) -> list[dict[str, Any]]:
    """Return every object of the rendered chart."""
    text = _rendered(json.dumps(values), ("template", release, str(CHART), "-n", namespace, *KUBERNETES))
    return [o for o in yaml.load_all(text, _Loader) if o]


@functools.cache
def _rendered(values: str, arguments: tuple[str, ...]) -> str:
    """Return Helm's output, cached because many tests render the same values."""
    done = run(*arguments, values=json.loads(values))
    assert done.returncode == 0, done.stderr
    return done.stdout


def refusal(values: Mapping[str, Any]) -> str:
    """Return Helm's message for values that it refuses."""
    done = run("template", "tartlet", str(CHART), *KUBERNETES, values=values)
    assert done.returncode != 0, "these values were accepted"
    return done.stderr


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Return the objects of a kind."""
    return [o for o in objects if o["kind"] == kind]


def named(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    """Return the object of a kind and name."""
    (one,) = [o for o in of_kind(objects, kind) if o["metadata"]["name"] == name]
    return one


def made_pools(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the pools of the values, as the chart tells the operator."""
    (told,) = [o for o in of_kind(objects, "ConfigMap") if "pools.json" in o.get("data", {})]
    pools: list[dict[str, Any]] = json.loads(told["data"]["pools.json"])
    return pools


def pods(objects: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield name, metadata and spec of every pod that the objects create."""
    for each in objects:
        name = f"{each['kind']}/{each['metadata']['name']}"
        if each["kind"] == "Pod":
            yield name, each["metadata"], each["spec"]
        elif each["kind"] in {"Deployment", "Job", "StatefulSet", "DaemonSet"}:
            template = each["spec"]["template"]
            yield name, template["metadata"], template["spec"]


EVERYTHING: Mapping[str, Any] = {
    "control": {"replicas": 2, "directory": {"store": "redis"}},
    "journals": {"store": "redis"},
    "monitoring": {
        "podMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
        "dashboards": {"enabled": True},
    },
    "operator": {"namespaces": ["prod", "team-a"]},
    "gateway": {"enabled": True, "keys": {"secretName": "keys"}},
    "test": {"chat": {"secretName": "test-key"}},
    "telemetry": {"otlpEndpoint": "http://collector.observability:4317"},
}
