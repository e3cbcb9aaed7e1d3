"""A launch becomes a specification: checked, with an identity and a seed of its own."""

from __future__ import annotations

from typing import Any

import pytest

from tartlet_common.config.settings import RuntimeSettings
from tartlet_common.errors.registry import InvalidArgument
from tartlet_protos import common_pb2, programs_pb2
from tartlet_runtime.abi.limits import default_limits
from tartlet_runtime.serving.specs import specify

LIMITS = default_limits(RuntimeSettings())


def test_every_field_of_a_launch_reaches_its_specification() -> None:
    asked = programs_pb2.LaunchSpec(
        source=common_pb2.Source(language=common_pb2.Source.WASM, data=b"\0asm", filename="a/b.wasm"),
        args=["x"],
        model="m",
        tenant="t",
        idempotency_key="k",
        durable=True,
        seed=bytes(range(16)),
        trace={"traceparent": "00"},
    )
    spec = specify(asked, asked.source, LIMITS)
    assert (spec.language, spec.source, spec.filename, spec.name) == (
        common_pb2.Source.WASM,
        b"\0asm",
        "a/b.wasm",
        "b.wasm",
    )
    assert (spec.args, spec.model, spec.tenant, spec.idempotency_key) == (("x",), "m", "t", "k")
    assert (spec.durable, spec.seed, spec.seeded, spec.trace) == (True, bytes(range(16)), True, {"traceparent": "00"})
    assert spec.limits == LIMITS


def test_two_launches_alike_get_identities_and_seeds_of_their_own() -> None:
    asked = programs_pb2.LaunchSpec(source=common_pb2.Source(language=common_pb2.Source.PYTHON, data=b"pass"))
    first, second = (specify(asked, asked.source, LIMITS) for _ in range(2))
    assert first.program_id != second.program_id
    assert first.seed != second.seed


@pytest.mark.parametrize(
    ("asked", "default", "wanted"),
    [
        ({"durable": True}, "on", (True, False)),
        ({"durable": True}, "degrade", (True, True)),
        ({"durable": True}, "off", (False, False)),
        ({"durable": False}, "on", (False, False)),
        ({"durable": False, "durability": "on"}, "on", (False, False)),  # a launch without, of an inferlet with
        ({"durable": True, "durability": "on"}, "off", (True, False)),
        ({"durable": True, "durability": "degrade"}, "on", (True, True)),
        ({"durable": True, "durability": "off"}, "on", (False, False)),
        ({"durable": True, "degrade": True}, "off", (True, True)),
        ({"durable": True, "degrade": True, "durability": "on"}, "off", (True, False)),
    ],
)
def test_a_launch_is_as_durable_as_it_says_or_else_as_the_runtime_is(
    asked: dict[str, Any], default: str, wanted: tuple[bool, bool]
) -> None:
    launch = programs_pb2.LaunchSpec(source=common_pb2.Source(language=common_pb2.Source.PYTHON, data=b"pass"), **asked)
    spec = specify(launch, launch.source, LIMITS, lambda *_: default)
    assert (spec.durable, spec.degrades) == wanted


def test_an_unknown_durability_is_refused() -> None:
    source = common_pb2.Source(language=common_pb2.Source.PYTHON, data=b"pass")
    with pytest.raises(InvalidArgument):
        specify(programs_pb2.LaunchSpec(durable=True, durability="never"), source, LIMITS)
