"""From a typed model to the structural OpenAPI v3 schema that a CustomResourceDefinition takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tartlet_operator.api.common import ApiModel

_KEPT = frozenset(
    {
        "default",
        "description",
        "enum",
        "format",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "pattern",
        "required",
        "type",
    }
)


def structural(model: type[ApiModel]) -> dict[str, Any]:
    """The model's schema: references inlined, only keywords that Kubernetes knows, nested defaults filled in by it."""
    schema = model.model_json_schema(by_alias=True)
    return _plain(schema, schema.get("$defs", {}))


def _plain(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    merged = _resolved(node, definitions)
    if merged.get("x-kubernetes-int-or-string"):
        out = {k: v for k, v in merged.items() if k in _KEPT or k == "anyOf"}
        return {**out, "x-kubernetes-int-or-string": True}
    out = {k: v for k, v in merged.items() if k in _KEPT or k.startswith("x-kubernetes-")}
    if "const" in merged:
        out["enum"] = [merged["const"]]
    if out.get("default", 0) is None:
        del out["default"]
    if out.get("type") == "integer":
        out["format"] = "int64"
    if "properties" in merged:
        out["properties"] = {k: _field(v, definitions) for k, v in merged["properties"].items()}
    if isinstance(merged.get("additionalProperties"), Mapping):
        out["additionalProperties"] = _plain(merged["additionalProperties"], definitions)
    if "items" in merged:
        out["items"] = _plain(merged["items"], definitions)
    if "description" in out:
        out["description"] = " ".join(str(out["description"]).split())
    return out


def _field(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """A property; an object whose parts have defaults gets `default: {}`, else the server wouldn't look into it."""
    out = _plain(node, definitions)
    parts = out.get("properties", {})
    optional = "anyOf" in node  # X | None: unset means something
    if parts and not optional and not out.get("required") and any("default" in p for p in parts.values()):
        out.setdefault("default", {})
    return out


def _resolved(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """`node` with its reference and its `| None` replaced by what they stand for; its own keywords win."""
    own = dict(node)
    reference = own.pop("$ref", None)
    if reference is not None:
        return {**_resolved(definitions[reference.rsplit("/", 1)[-1]], definitions), **own}
    if "anyOf" in own and not own.get("x-kubernetes-int-or-string"):
        (one,) = [part for part in own.pop("anyOf") if part.get("type") != "null"]
        return {**_resolved(one, definitions), **own}
    return own
