from __future__ import annotations

import pytest

from tartlet_protos import control_pb2
from tools.gen_protos import moved


def test_generated_imports_move_to_the_new_package() -> None:
    assert moved("from tartlet.v1 import common_pb2 as c") == "from tartlet_protos import common_pb2 as c"


@pytest.mark.parametrize(
    "code", ["'/tartlet.v1.Control/Connect'", "'tartlet.v1.Control'", "'tartlet/v1/control.proto'"]
)
def test_names_on_the_wire_stay(code: str) -> None:
    assert moved(code) == code


def test_a_message_knows_its_new_module_and_keeps_its_wire_name() -> None:
    message = next(iter(control_pb2.DESCRIPTOR.message_types_by_name.values()))
    generated = getattr(control_pb2, message.name)
    assert generated.__module__ == "tartlet_protos.control_pb2"
    assert message.full_name.startswith("tartlet.v1.")
