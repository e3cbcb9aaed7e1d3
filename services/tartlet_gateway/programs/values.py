"""Programs, their events and the catalogue's entries as JSON values. Pure."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

import tartlet
from tartlet_common.bundles.layout import is_bundle
from tartlet_common.errors.registry import TartletError
from tartlet_gateway.programs.errors import TypedError


def bytes_of(data: bytes) -> dict[str, str]:
    r"""Return bytes as `text` if they are UTF-8, else as `data` in base64.

    Example:
        >>> bytes_of(b"hi"), bytes_of(b"\xff")
        ({'text': 'hi'}, {'data': '/w=='})
    """
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"data": base64.b64encode(data).decode()}


def event_value(event: tartlet.Event) -> dict[str, Any]:
    """Return an event of a program; `type` says which, and `program_id` whose.

    Example:
        >>> event_value(tartlet.Stdout("c6fe2a40", 3, b"hi"))
        {'type': 'stdout', 'program_id': 'c6fe2a40', 'offset': 3, 'text': 'hi'}
    """
    told = {"type": type(event).__name__.lower(), "program_id": event.program_id}
    match event:
        case tartlet.Accepted():
            return {**told, "id": event.program_id}
        case tartlet.Ended():
            return {**told, "offset": event.offset, **end_value(event)}
        case _:
            return {**told, "offset": event.offset, **bytes_of(event.data)}


def end_value(ended: tartlet.Ended) -> dict[str, Any]:
    """Return how a program ended."""
    return {
        "success": ended.success,
        "result": ended.result,
        "error": _error(ended.error),
        "usage": msgspec.to_builtins(ended.usage),
    }


def info_value(info: tartlet.ProgramInfo) -> dict[str, Any]:
    """Return a program in a listing. Where it runs isn't told."""
    return {
        "object": "program",
        "id": info.program_id,
        "name": info.name,
        "state": info.state,
        "tenant": info.tenant,
        "model": info.model,
        "started": info.started_unix_s,
        "age_s": info.age_s,
        "recovered_s": info.recovered_s,
        "pauses": [msgspec.to_builtins(pause) for pause in info.pauses],
        "parent": info.parent,
        "pages": info.pages,
        "idempotency_key": info.idempotency_key,
        "usage": msgspec.to_builtins(info.usage),
        "error": _error(info.error),
    }


def entry_value(entry: tartlet.CatalogueEntry) -> dict[str, Any]:
    """Return an entry of the catalogue; a listed one has no source."""
    source = entry.source
    kind = {"source": source.data.decode(errors="replace")} if source.data else {}
    if source.data and source.language is not tartlet.Language.PYTHON:
        kind = {"wasm": base64.b64encode(source.data).decode()}
    elif is_bundle(source.data):
        kind = {"bundle": base64.b64encode(source.data).decode()}
    return {
        "object": "inferlet",
        "name": entry.name,
        "language": source.language.value,
        "filename": source.filename,
        "tenant": entry.tenant,
        "model": entry.model,
        "description": entry.description,
        "pool": entry.pool,
        "durability": entry.durability,
        "limits": msgspec.to_builtins(entry.limits),
        **kind,
    }


def _error(error: TartletError | None) -> dict[str, Any] | None:
    told: dict[str, Any] | None = None if error is None else TypedError(error).body["error"]
    return told
