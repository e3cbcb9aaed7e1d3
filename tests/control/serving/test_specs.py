"""The spec of a Hello: a worker's text reaches every runtime, so a field that none could be told of is refused."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from tartlet_common.errors.registry import InvalidArgument
from tartlet_control.serving.specs import spec_from_json
from tartlet_protos import control_pb2
from tartlet_worker.fake import FakeEngine, FakeOptions

NO_TEXTS: tuple[Any, ...] = (0, None, ["a"], {}, "\ud800")
SPEC = FakeEngine(FakeOptions()).spec


def test_the_spec_of_an_engine_is_read_as_the_engine_wrote_it() -> None:
    assert spec_from_json(json.dumps(asdict(SPEC))) == SPEC


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((name, value) for name in ("model", "tokenizer_digest", "dtype") for value in NO_TEXTS),
        ("model", ""),
        ("model", "m" * 257),
        ("device", "d" * 4_000_000),
        ("chat_template", 5),
        ("chat_bos", "\udfff"),
        ("num_pages", True),
        *((f"num_{pool}", (1 << 24) + 1) for pool in ("pages", "embeds", "slots")),
        ("kv_bytes_per_token", float("nan")),
        ("kv_bytes_per_token", -1),
        ("bos_token", "x"),
        ("batch_invariant", 1),
        ("stop_tokens", ["a"]),
        ("stop_tokens", [1 << 40]),
        ("stop_tokens", "12"),
        ("traits", [[1]]),
        ("traits", ["t"] * 1000),
        ("traits", ["\ud800"]),
    ],
)
def test_a_field_of_another_type_or_size_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        spec_from_json(json.dumps(asdict(SPEC) | {field: value}))
    assert refusal.value.fields["argument"] == f"spec.{field}"
    control_pb2.ModelInfo(name=refusal.value.text)  # a message can carry the refusal


@pytest.mark.parametrize("text", ["", "[]", "null", "[" * 100_000, "{}", '{"spare": 1}'])
def test_what_is_no_spec_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        spec_from_json(text)
