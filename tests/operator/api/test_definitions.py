"""Files generated from the models: schemas that Kubernetes accepts, and the reference; and the examples."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tartlet_operator.api import RESOURCES, Resource
from tartlet_operator.api.reasons import EVENT_MEANING, MEANING, EventReason, Reason
from tools import gen_crds

CONDITIONS = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}


def nodes(node: dict[str, Any], path: str = "", *, core: bool = True) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the parts of a schema; `core`: also those below pieces of the core API."""
    yield path, node
    if not core and "as in the core API" in node.get("description", ""):
        return
    for name, child in node.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}", core=core)
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            yield from nodes(node[key], f"{path}[]", core=core)


def schema(resource: Resource) -> dict[str, Any]:
    version: dict[str, Any] = gen_crds.definition(resource)["spec"]["versions"][0]
    out: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return out


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda r: r.kind)
class TestSchemas:
    def test_every_string_list_and_map_is_bounded(self, resource: Resource) -> None:
        for path, node in nodes(schema(resource)["properties"]["spec"], "spec"):
            assert "x-kubernetes-preserve-unknown-fields" not in node, f"{path} would nest without a bound"
            if node.get("x-kubernetes-int-or-string"):
                continue
            kind = node.get("type")
            if kind == "string" and "enum" not in node:
                assert "maxLength" in node, path
            if kind == "array":
                assert "maxItems" in node, path
            if kind == "object" and "additionalProperties" in node:
                assert "maxProperties" in node, path
            if kind == "integer":
                assert "maximum" in node, path
                assert "minimum" in node, path

    def test_every_field_is_described_and_typed(self, resource: Resource) -> None:
        for section in ("spec", "status"):
            for path, node in nodes(schema(resource)["properties"][section], section, core=False):
                assert node.get("type") or node.get("x-kubernetes-int-or-string"), path
                if not path.endswith("[]"):
                    assert node.get("description"), path

    def test_optional_fields_have_a_default_or_mean_something_unset(self, resource: Resource) -> None:
        for path, node in nodes(schema(resource)["properties"]["spec"], "spec"):
            for name, child in node.get("properties", {}).items():
                if name in node.get("required", ()):
                    assert "default" not in child, f"{path}.{name}"

    def test_no_keyword_that_kubernetes_does_not_know(self, resource: Resource) -> None:
        for path, node in nodes(schema(resource)):
            assert not node.keys() & {"$ref", "$defs", "title", "const", "exclusiveMinimum", "examples"}, path
            assert "anyOf" not in node or node.get("x-kubernetes-int-or-string"), path

    def test_conditions_are_a_map_by_type(self, resource: Resource) -> None:
        conditions = schema(resource)["properties"]["status"]["properties"]["conditions"]
        assert CONDITIONS.items() <= conditions.items()
        assert "observedGeneration" in conditions["items"]["properties"]

    def test_rules_say_which_field_and_what_to_do(self, resource: Resource) -> None:
        for path, node in nodes(schema(resource)):
            for rule in node.get("x-kubernetes-validations", ()):
                assert rule["message"].count("spec") or rule["message"].count("metadata.name"), path
                assert ":" in rule["message"] or rule["message"].startswith(("set", "remove")), rule["message"]


def test_pools_can_be_scaled_by_others() -> None:
    pool = gen_crds.definition(RESOURCES[0])["spec"]["versions"][0]["subresources"]
    assert pool == {
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    }


def test_generated_files_are_fresh_and_staleness_is_seen(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repo)
    assert gen_crds.main(["--check"]) == 0
    values = json.loads(gen_crds.VALUES.read_text())
    monkeypatch.chdir(tmp_path)
    gen_crds.VALUES.parent.mkdir(parents=True)
    values["properties"]["enginePools"]["items"]["properties"]["spec"] = {}
    gen_crds.VALUES.write_text(json.dumps(values))
    assert gen_crds.main(["--check"]) == 1
    assert gen_crds.main([]) == 0
    assert gen_crds.VALUES.read_text() == (repo / gen_crds.VALUES).read_text()
    assert gen_crds.main(["--check"]) == 0
    (tmp_path / gen_crds.REFERENCE).write_text("stale")
    assert gen_crds.main(["--check"]) == 1


def test_every_reason_has_a_meaning() -> None:
    assert (list(MEANING), list(EVENT_MEANING)) == (list(Reason), list(EventReason))
    assert all(r.value[0].isupper() and r.value.isalnum() for r in (*MEANING, *EVENT_MEANING))
    told = gen_crds.reference()
    for reason, meaning in (*MEANING.items(), *EVENT_MEANING.items()):
        assert f"| `{reason}` | {meaning} |" in told


def test_examples_are_of_known_kinds(repo: Path) -> None:
    models = {r.kind: r.model for r in RESOURCES}
    seen = set()
    for path in sorted((repo / "docs/examples").glob("*.yaml")):
        body = yaml.safe_load(path.read_text())
        models[body["kind"]].model_validate(body)
        seen.add(body["kind"])
    assert seen == set(models)
