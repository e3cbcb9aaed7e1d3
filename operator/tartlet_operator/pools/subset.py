"""Compares a live object with a manifest: whether it has all of it, and nothing left over from an earlier manifest."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tartlet_operator.api.common import quantity

_QUANTITIES = frozenset({"limits", "requests"})
_WHOLE = frozenset({"nodeSelector", "tolerations"})
"""Fields that the server replaces as a whole and adds nothing to."""


def covers(live: Any, wanted: Any, field: str = "") -> bool:
    """Whether everything in `wanted` is in `live`; the server may have added to it.

    Lists must have the same entries in the same order. An empty value is as good as none. Quantities are compared by
    what they are worth.

    Example:
        >>> covers({"a": 1, "b": [{"c": 2, "d": 3}]}, {"b": [{"c": 2}], "e": {}})
        True
    """
    if field in _WHOLE:
        return bool((live or type(wanted)()) == wanted)
    if field == "sizeLimit":
        return _same_quantity(live, wanted)
    if isinstance(wanted, Mapping):
        if not isinstance(live, Mapping):
            return live is None and not wanted
        if field in _QUANTITIES:
            return live.keys() == wanted.keys() and all(_same_quantity(live[k], v) for k, v in wanted.items())
        return all(covers(live.get(k), v, k) for k, v in wanted.items())
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        live = live or []
        return len(live) == len(wanted) and all(covers(a, b) for a, b in zip(live, wanted, strict=True))
    return bool(live == wanted) or (live is None and wanted in ("", 0, False, None))


def leftover(live: Mapping[str, Any], wanted: Mapping[str, Any], manager: str) -> bool:
    """Whether a manager's last apply put something into an object that it no longer wants; the next apply removes it.

    Example:
        >>> fields = {"f:spec": {"f:a": {}, "f:b": {'k:{"name":"x"}': {".": {}, "f:name": {}}}}}
        >>> live = {"metadata": {"managedFields": [{"manager": "me", "operation": "Apply", "fieldsV1": fields}]}}
        >>> leftover(live, {"spec": {"a": 1, "b": [{"name": "x"}]}}, "me"), leftover(live, {"spec": {"a": 1}}, "me")
        (False, True)
    """
    applied = (
        each.get("fieldsV1") or {}
        for each in live["metadata"].get("managedFields") or ()
        if (each.get("manager"), each.get("operation"), each.get("subresource", "")) == (manager, "Apply", "")
    )
    return not all(_has(wanted, fields) for fields in applied)


def _has(wanted: Any, fields: Mapping[str, Any]) -> bool:
    """Whether all `fields` (in the form `FieldsV1`) are in a value."""
    for name, below in fields.items():
        kind, _, rest = name.partition(":")
        if kind == "f":
            found = wanted.get(rest) if isinstance(wanted, Mapping) else None
        elif kind == "k":
            key, entries = json.loads(rest).items(), wanted if isinstance(wanted, Sequence) else ()
            found = next((e for e in entries if all(e.get(k) == v for k, v in key)), None)
        else:  # the object itself, or a value of a set
            continue
        if found is None or not _has(found, below):
            return False
    return True


def _same_quantity(live: Any, wanted: Any) -> bool:
    try:
        return live is not None and quantity(live) == quantity(wanted)
    except ValueError:
        return bool(live == wanted)
