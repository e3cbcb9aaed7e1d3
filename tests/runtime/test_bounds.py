"""What a hostile program asks of the runtime's parts stays within the bounds of docs/limits.md."""

from __future__ import annotations

import numpy as np
import pytest

from tartlet_common.abi import RECORD, Op
from tartlet_common.errors import MalformedSubmission
from tartlet_runtime.inbox import delivery
from tartlet_runtime.submission import parse


def shared_payload(count: int, size: int, local: int) -> bytes:
    """`count` records that all name the same `size` bytes, the first `local` of them for the runtime."""
    records = np.zeros(count, RECORD)
    records["op"] = Op.EMBED_TXT
    records["op"][:local] = Op.LOG
    records["length"] = size
    return delivery(count, records.tobytes(), bytes(size))


@pytest.mark.parametrize("count", [2, 24, 400])
@pytest.mark.parametrize("local", [0, 1, 2])
def test_records_that_share_payload_are_refused(count: int, local: int) -> None:
    with pytest.raises(MalformedSubmission, match="records name"):
        parse(shared_payload(count, 1 << 20, local))
    whole = parse(shared_payload(1, 1 << 20, 0))
    assert len(whole.payload) == 1 << 20
