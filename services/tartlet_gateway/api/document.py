"""The OpenAPI document, made from the table of operations and the types of their bodies. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from tartlet_gateway.api.operations import JSON, Operation

_PARAMETER: Final = re.compile(r"\{(\w+)(?::path)?\}")
_ERROR: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
                "tartlet": {
                    "type": "object",
                    "description": "The error of Tartlet's registry; routes of programs tell it.",
                    "properties": {
                        "number": {"type": "integer"},
                        "name": {"type": "string"},
                        "fields": {"type": "object"},
                    },
                },
            },
        }
    },
}


def document(operations: Sequence[Operation]) -> bytes:
    """Return the document of all operations, as JSON."""
    bodies = [operation.body for operation in operations if operation.body is not None]
    schemas, components = msgspec.json.schema_components(bodies, ref_template="#/components/schemas/{name}")
    of = dict(zip(map(id, bodies), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        path = _PARAMETER.sub(r"{\1}", operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = _operation(operation, of.get(id(operation.body)))
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Tartlet",
                "version": "1",
                "description": "Models, inferlets and programs. `/v1/programs/socket` and `/v1/live` are "
                "WebSockets, which aren't listed here.",
            },
            "security": [{"bearer": []}, {"key": []}, {}],
            "paths": paths,
            "components": {
                "schemas": {**components, "Error": _ERROR},
                "securitySchemes": {
                    "bearer": {"type": "http", "scheme": "bearer"},
                    "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                },
            },
        }
    )


def _operation(operation: Operation, schema: dict[str, Any] | None) -> dict[str, Any]:
    error = {"content": {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}, "description": "An error."}
    content = {kind: {"schema": {"type": "object" if kind == JSON else "string"}} for kind in operation.replies}
    told: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": _identifier(operation),
        "responses": {str(operation.status): {"description": "Done.", "content": content}, "default": error},
    }
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(operation.path)
    ]
    in_query = [
        {"name": name, "in": "query", "description": text, "schema": {"type": "string"}}
        for name, text in operation.query
    ]
    if in_path or in_query:
        told["parameters"] = [*in_path, *in_query]
    if schema is not None:
        other = {"type": "string", "contentMediaType": "application/octet-stream"}
        kinds = {kind: {"schema": schema if kind == JSON else other} for kind in operation.content_types}
        told["requestBody"] = {"required": True, "content": kinds}
    if operation.is_open:
        told["security"] = []
    return told


def _identifier(operation: Operation) -> str:
    """Return a name that no other operation has, such as `get_v1_programs_name`."""
    return re.sub(r"\W+", "_", f"{operation.method.lower()}{operation.path.replace(':path', '')}").strip("_")
