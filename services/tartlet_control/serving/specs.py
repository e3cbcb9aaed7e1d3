"""Reads the spec in a worker's Hello, and checks it: the spec comes from another process."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Final

from tartlet_common.engine.spec import EngineSpec
from tartlet_common.errors.registry import InvalidArgument, TartletError

_NAME_CHARS: Final = 256
_SPEC_FIELDS: Final = {f.name: f for f in fields(EngineSpec)}


def spec_from_json(text: str) -> EngineSpec:
    """The spec of a Hello.

    Raises:
        InvalidArgument: not a spec: unknown, missing or impossible fields.
    """
    try:
        raw = json.loads(text)
        unknown = raw.keys() - _SPEC_FIELDS.keys()
        if unknown:
            raise InvalidArgument(argument="spec", detail=f"unknown fields {sorted(unknown)}")
        for name in ("stop_tokens", "traits"):
            if name in raw:
                raw[name] = tuple(raw[name])
        spec = EngineSpec(**raw)
        _check_spec(spec)
    except TartletError:
        raise
    except (ValueError, TypeError, AttributeError) as e:
        raise InvalidArgument(argument="spec", detail=str(e)) from e
    return spec


def _check_spec(spec: EngineSpec) -> None:
    limits = {
        "page_size": (1, 32),
        "num_pages": (1, 1 << 26),
        "num_embeds": (1, 1 << 26),
        "num_slots": (1, 1 << 26),
        "vocab_size": (1, 1 << 30),
        "max_position": (1, 1 << 30),
        "max_batch_tokens": (1, 1 << 24),
        "max_batch_commands": (1, 1 << 20),
        "top_k_limit": (1, 1 << 18),
        "logprobs_limit": (0, 1 << 12),
    }
    for name, (low, high) in limits.items():
        value = getattr(spec, name)
        if not isinstance(value, int) or not low <= value <= high:
            raise InvalidArgument(argument=f"spec.{name}", detail=f"{value!r} is not between {low} and {high}")
    if not 0 < len(spec.model) <= _NAME_CHARS:
        raise InvalidArgument(argument="spec.model", detail=f"{len(spec.model)} characters, not 1 to {_NAME_CHARS}")
