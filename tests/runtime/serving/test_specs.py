"""What a launch asks for, and one more of the same."""

from __future__ import annotations

from dataclasses import fields, replace

from tartlet_common.config.settings import RuntimeSettings
from tartlet_protos import common_pb2, programs_pb2
from tartlet_runtime.abi.limits import default_limits
from tartlet_runtime.serving.specs import another, specify


def test_one_more_is_the_same_but_for_its_identity_and_its_seed() -> None:
    asked = programs_pb2.LaunchSpec(
        source=common_pb2.Source(language=common_pb2.Source.WASM, data=b"\0asm", filename="a/b.wasm"),
        args=["x"],
        model="m",
        tenant="t",
        idempotency_key="k",
        durable=True,
        seed=bytes(16),
        trace={"traceparent": "00"},
    )
    first = specify(asked, asked.source, default_limits(RuntimeSettings()))
    second = another(first, b"s" * 16)
    assert second.program_id != first.program_id
    assert second.shared is first.shared
    assert second == replace(first, program_id=second.program_id, seed=b"s" * 16)
    assert all(getattr(first, field.name) for field in fields(first))  # else two of them could have changed places


def test_programs_that_ask_for_no_seed_get_one_each() -> None:
    asked = programs_pb2.LaunchSpec(source=common_pb2.Source(language=common_pb2.Source.PYTHON, data=b"pass"))
    spec = specify(asked, asked.source, default_limits(RuntimeSettings()))
    assert len({spec.seed, another(spec, b"").seed, another(spec, b"").seed}) == 3
