"""All calls of the ABI, by operation. An operation without a call fails the import of this module."""

from __future__ import annotations

from typing import Final

from tartlet_common.abi import Op
from tartlet_common.engine.step import check_covers
from tartlet_common.errors.registry import REGISTRY
from tools.calls.control_calls import CONTROL_CALLS
from tools.calls.layout import Call, Layout
from tools.calls.runtime_calls import MESSAGE, RUNTIME_CALLS
from tools.calls.worker_calls import SAMPLE_GRAMMAR, SAMPLE_OPTIONS, SAMPLE_PARAMS, WORKER_CALLS

CALLS: Final[dict[Op, Call]] = {call.op: call for call in (*RUNTIME_CALLS, *CONTROL_CALLS, *WORKER_CALLS)}
"""By operation, in the order of the table in docs/calls.md."""
PARTS: Final[tuple[Layout, ...]] = (MESSAGE, SAMPLE_PARAMS, SAMPLE_OPTIONS, SAMPLE_GRAMMAR)
"""Layouts of which payloads of calls are made."""
EVERY_CALL: Final = ("MalformedSubmission", "TooManyCommands", "FrameTooLarge")
"""Errors that each call may raise."""
EVERY_QUEUED: Final = ("UnknownQueue", "UnknownModel", "UnknownPool", "NoEngine", "ResourceQuotaExceeded")
"""Errors that each call which names a queue may raise, too."""

check_covers(CALLS, Op, "tools.calls.registry")
_NAMES: Final = {error.__name__ for error in REGISTRY.values()}
for _call in CALLS.values():
    _unknown = {*_call.errors, *EVERY_CALL, *EVERY_QUEUED} - _NAMES
    _used = {part.lstrip("#?") for part in (*_call.fields, *_call.payload)} - {""}
    assert not _unknown, f"{_call.name} names errors that aren't there: {_unknown}"
    assert _used == {arg.name for arg in _call.args}, f"{_call.name} packs {_used}"
