"""Which case of `tests/e2e/calls/program` shows that a call works: for each call of the paper, and each operation."""

from __future__ import annotations

from typing import Final

from tartlet_common.abi import Op
from tools.calls.paper import PAPER_CALLS, RUNTIME

PROGRAM: Final = "tests/e2e/calls/program"
_OF_PAPER: Final = {
    "get_kv_page_size": "model_card",
    "get_all_exported_kvpages": "export_kvpage",
    "import_kvpage": "export_kvpage",
    "subscribe": "broadcast",
    "store_get": "store_set",
    **{call.name: "model_card" for call in RUNTIME if call.op is Op.GET_MODEL and call.trait == "Model"},
}
_OF_OPS: Final = {
    Op.CONTINUE: "continue_",
    Op.HTTP_REQUEST: "http_post",
    Op.CHILD_NEXT: "child_send",
    Op.STORE_GET: "store_set",
    Op.SUBSCRIBE: "broadcast",
    Op.NEXT_MESSAGE: "broadcast",
    Op.IMPORT_KVPAGE: "export_kvpage",
    Op.GET_ALL_EXPORTED_KVPAGES: "export_kvpage",
}
BY_CALL: Final = {call.name: _OF_PAPER.get(call.name, call.name) for call in PAPER_CALLS if call.op is not None}
"""The case of each call of the paper."""
BY_OP: Final = {op: _OF_OPS.get(op, op.name.lower()) for op in Op}
"""The case of each operation, which fails if the host does nothing at it."""
STUBS: Final = sorted(
    {(case, op) for op, case in BY_OP.items()}
    | {(BY_CALL[call.name], call.op) for call in PAPER_CALLS if call.op is not None}
)
"""Cases with the operation without which they must fail."""
