"""Reads the specs in Hellos, which are checked because they come from other processes, and tells runtimes of them."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, Final

from tartlet_common.engine import defaults
from tartlet_common.engine.pools import Home
from tartlet_common.engine.spec import AdapterSpec, EngineSpec, adapters_of
from tartlet_common.errors.registry import InvalidArgument, MalformedSubmission
from tartlet_common.rpc.error_proto import error_from_proto
from tartlet_control.core.places.adapters import AdapterReport
from tartlet_control.tables.models import ServedModel
from tartlet_control.tables.numbering import Numbering
from tartlet_protos import control_pb2, engine_pb2

log = logging.getLogger("tartlet.control")

_SPEC_FIELDS: Final = {f.name: f for f in fields(EngineSpec)}
_REQUIRED: Final = {n for n, f in _SPEC_FIELDS.items() if f.default is MISSING and f.default_factory is MISSING}
_SHOWN_CHARS: Final = 128
"""Characters of an impossible value that a refusal shows."""

_NUMBERS: Final = {
    "page_size": (1, 32),
    "num_pages": (1, 1 << 24),
    "num_embeds": (1, 1 << 24),
    "num_slots": (1, 1 << 24),
    "vocab_size": (1, 1 << 30),
    "max_position": (1, 1 << 30),
    "max_batch_tokens": (1, 1 << 24),
    "max_batch_commands": (1, 1 << 20),
    "top_k_limit": (1, 1 << 18),
    "logprobs_limit": (0, 1 << 12),
    "kv_bytes_per_token": (0, 1 << 40),
    "host_pages": (0, 1 << 24),
    "host_page_ns": (0, 1 << 40),
}
"""The least and the greatest value of each number."""
_TEXTS: Final = {
    "model": (1, 256),
    "model_digest": (0, 128),
    "family": (0, 64),
    "dtype": (0, 64),
    "device": (0, 128),
    "tokenizer_digest": (0, 128),
    "chat_template": (0, 1 << 18),
    "chat_bos": (0, 256),
    "chat_eos": (0, 256),
    "description": (0, defaults.DESCRIPTION_CHARS),
    "version": (0, defaults.CARD_CHARS),
    "license": (0, defaults.CARD_CHARS),
}
"""The least and the greatest number of characters of each text."""
_TOKENS: Final = (0, (1 << 31) - 1)
_TRAIT: Final = (1, 64)
_MOST_ITEMS: Final = 256
_ADAPTER_FIELDS: Final = {f.name for f in fields(AdapterSpec)}
_ADAPTERS: Final = frozenset({"adapters", "retiring"})
_OPTIONAL: Final = frozenset({"bos_token", "chat_bos", "chat_eos"})
"""Fields that may be null."""


def spec_from_json(text: str) -> EngineSpec:
    """Return the spec of a Hello, of which every field is checked.

    Raises:
        InvalidArgument: the text is no spec: fields are unknown, missing, of another type or out of their bounds.
    """
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise InvalidArgument(argument="spec", detail=str(e)[:_SHOWN_CHARS]) from e
    if not isinstance(raw, dict):
        raise InvalidArgument(argument="spec", detail="no JSON object")
    if unknown := raw.keys() - _SPEC_FIELDS.keys():
        raise InvalidArgument(argument="spec", detail=f"unknown fields {_shown(sorted(unknown))}")
    if missing := _REQUIRED - raw.keys():
        raise InvalidArgument(argument="spec", detail=f"without {sorted(missing)}")
    for name, value in raw.items():
        if value is not None or name not in _OPTIONAL:
            _check_field(name, value)
    lists = {name: tuple(value) for name, value in raw.items() if isinstance(value, list)}
    lists |= {name: adapters_of(raw[name]) for name in _ADAPTERS if name in lists}
    return EngineSpec(**(raw | lists))


def adapter_report(spec: EngineSpec, report: engine_pb2.AdapterReport) -> AdapterReport:
    """Return what a worker says of the adapters of its engine, which is checked.

    Raises:
        MalformedSubmission: it says something impossible, or its engine's adapters don't come and go.
    """
    if not spec.live_adapters:
        raise MalformedSubmission(detail="a report on adapters that don't come and go")
    offered, retiring = _reported(report.adapters_json), _reported(report.retiring_json)
    refused = {name: error for name, sent in report.refused.items() if (error := error_from_proto(sent)) is not None}
    if len(refused) > _MOST_ITEMS:
        raise MalformedSubmission(detail=f"{len(refused)} refused adapters")
    return AdapterReport(offered, retiring, refused)


def _reported(text: str) -> tuple[AdapterSpec, ...]:
    try:
        value = json.loads(text)
        _check_field("adapters", value)
    except (ValueError, RecursionError, InvalidArgument) as e:
        raise MalformedSubmission(detail=f"adapters: {e}"[:_SHOWN_CHARS]) from e
    return adapters_of(value)


def _check_field(name: str, value: Any) -> None:
    if name in _NUMBERS:
        _check_number(name, value, _NUMBERS[name])
    elif name in _TEXTS:
        _check_text(name, value, _TEXTS[name])
    elif name == "bos_token":
        _check_number(name, value, _TOKENS)
    elif name in {"batch_invariant", "live_adapters"}:
        if not isinstance(value, bool):
            raise _impossible(name, value, "neither true nor false")
    else:  # stop_tokens, traits, adapters, retiring
        if not isinstance(value, list) or len(value) > _MOST_ITEMS:
            raise _impossible(name, value, f"no list of at most {_MOST_ITEMS}")
        for item in value:
            if name == "stop_tokens":
                _check_number(name, item, _TOKENS)
            elif name in _ADAPTERS:
                _check_adapter(item)
            else:
                _check_text(name, item, _TRAIT)


def _check_adapter(value: Any) -> None:
    if not isinstance(value, dict) or value.keys() != _ADAPTER_FIELDS:
        raise _impossible("adapters", value, f"not an object of {', '.join(sorted(_ADAPTER_FIELDS))}")
    _check_text("adapters.name", value["name"], _TRAIT)
    _check_text("adapters.digest", value["digest"], (8, 128))
    if set(value["digest"]) - set("0123456789abcdef"):
        raise _impossible("adapters.digest", value["digest"], "not hexadecimal")
    _check_number("adapters.rank", value["rank"], (1, 1 << 20))


def _check_number(name: str, value: Any, bounds: tuple[int, int]) -> None:
    if type(value) is not int or not bounds[0] <= value <= bounds[1]:  # a bool is an int too
        raise _impossible(name, value, f"not a number between {bounds[0]} and {bounds[1]}")


def _check_text(name: str, value: Any, bounds: tuple[int, int]) -> None:
    if not isinstance(value, str) or not bounds[0] <= len(value) <= bounds[1]:
        raise _impossible(name, value, f"not a text of {bounds[0]} to {bounds[1]} characters")
    try:
        value.encode()
    except UnicodeEncodeError as e:  # a lone surrogate, which no message can carry
        raise _impossible(name, value, "not Unicode text") from e


def _impossible(name: str, value: Any, why: str) -> InvalidArgument:
    return InvalidArgument(argument=f"spec.{name}", detail=f"{_shown(value)} is {why}")


def _shown(value: Any) -> str:
    return ascii(value)[:_SHOWN_CHARS]


def known_model(info: control_pb2.ModelInfo) -> tuple[int, EngineSpec, str | None]:
    """Return the number, the spec and the owner of a model that a runtime knows."""
    return info.index, spec_from_json(info.spec_json), info.owner if info.owned else None


def model_info(model: ServedModel, numbers: Numbering, durabilities: Mapping[str, str]) -> control_pb2.ModelInfo | None:
    """Return what runtimes are told of a model; None for one that no message can carry, which costs that one alone.

    Args:
        model: the model.
        numbers: of models, as the runtime knows them.
        durabilities: of launches that say nothing, by the paths of pools.
    """
    try:
        info = control_pb2.ModelInfo(**model.info() | {"index": numbers.theirs(model.index)})
    except (TypeError, ValueError):
        log.exception("runtimes aren't told of model %d", model.index)
        return None
    for pool in info.pools:
        if pool.name:
            pool.durability = durabilities.get(Home(model.owner, pool.name).path, "")
    return info
