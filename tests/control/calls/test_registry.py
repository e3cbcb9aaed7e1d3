"""A call that control or the worker lacks is found when their modules are imported, not when a program uses it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tartlet_common.abi import QUEUED_OPS, Op
from tartlet_common.engine.step import Kind
from tartlet_control.calls import registry

NEW_KIND = """
from enum import IntEnum
from tartlet_common.engine import step
step.Kind = IntEnum("Kind", {**{k.name: k.value for k in step.Kind}, "NEW_CALL": 99})
"""
NEW_OP = """
from enum import IntEnum
from tartlet_common import abi
abi.Op = IntEnum("Op", {**{op.name: op.value for op in abi.Op}, "NEW_CALL": 99})
abi.QUEUED_OPS = frozenset(abi.Op(op) for op in abi.QUEUED_OPS) | {abi.Op.NEW_CALL}
"""
WITHOUT_SAMPLE = """
from tartlet_control.calls import output
output.ENGINE_CALLS = (output.GET_NEXT_DIST,)
"""
WITHOUT_HANDLER = """
from tartlet_common.engine.step import Kind
from tartlet_worker.handlers import output, registration
del registration.HANDLERS[Kind.SAMPLE]
"""


@pytest.mark.parametrize(
    ("before", "module", "missing"),
    [
        ("", "tartlet_control.calls.registry", ""),
        (NEW_KIND, "tartlet_control.calls.registry", "NEW_CALL"),
        (NEW_OP, "tartlet_control.calls.registry", "NEW_CALL"),
        (WITHOUT_SAMPLE, "tartlet_control.calls.registry", "SAMPLE"),
        (NEW_KIND, "tartlet_worker.fake.handlers", "NEW_CALL"),
        (NEW_KIND, "tartlet_worker.handlers.registry", "NEW_CALL"),
        (WITHOUT_HANDLER, "tartlet_worker.handlers.registry", "SAMPLE"),
    ],
)
def test_a_call_that_a_module_lacks_fails_its_import(before: str, module: str, missing: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"{before}\nimport {module}"], capture_output=True, text=True, check=False
    )
    said = done.stderr.strip()
    assert (f"MissingCall: {module} lacks {missing}:" in said) if missing else not said


def test_each_operation_of_a_queue_and_each_kind_of_batch_is_one_call() -> None:
    ops = [call.op for call in registry.CONTROL_CALLS] + [call.op for call in registry.ENGINE_CALLS]
    ops += [call.op for call in registry.SAME_BATCH]
    assert sorted(ops) == sorted(QUEUED_OPS)
    assert sorted(call.kind for call in registry.ENGINE_CALLS) == sorted(Kind)


def test_pipeline_order_is_that_of_a_decode_iteration() -> None:
    order = [call.op for call in registry.ENGINE_CALLS]
    assert order.index(Op.EMBED_TXT) < order.index(Op.FORWARD) < order.index(Op.SAMPLE)
