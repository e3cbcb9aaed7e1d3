"""Whether a live object already is what a manifest asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tartlet_operator.api.common import quantity

_QUANTITIES = frozenset({"limits", "requests"})


def covers(live: Any, wanted: Any, field: str = "") -> bool:
    """Whether everything in `wanted` is in `live`; what the server added beside it doesn't matter.

    Lists must have the same entries in the same order. An empty value is as good as none. Quantities are compared by
    what they are worth.

    Example:
        >>> covers({"a": 1, "b": [{"c": 2, "d": 3}]}, {"b": [{"c": 2}], "e": {}})
        True
    """
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


def _same_quantity(live: Any, wanted: Any) -> bool:
    try:
        return quantity(live) == quantity(wanted)
    except ValueError:
        return bool(live == wanted)
