"""The guest-host codec: what is encoded decodes to the same, and nothing malformed gets through."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tartlet_common import abi
from tartlet_common.errors.registry import MalformedSubmission, UnsupportedAbi

_u16, _u32 = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1)
_rows = st.lists(st.tuples(_u16, _u16, _u32, _u32, _u32, _u32, _u32, st.binary(max_size=64)), max_size=20)


@given(_rows)
def test_records_and_payloads_survive_the_codec(rows: list[tuple[int, int, int, int, int, int, int, bytes]]) -> None:
    writer = abi.Writer()
    for op, flags, ticket, queue, a, b, c, payload in rows:
        writer.add(op, flags=flags, ticket=ticket, queue=queue, a=a, b=b, c=c, payload=payload)
    batch = abi.decode(writer.finish())
    seen = [(*r.tolist()[:7], batch.payload[r["offset"] : int(r["offset"]) + int(r["length"])]) for r in batch.records]
    assert seen == [(op, flags, ticket, queue, a, b, c, p) for op, flags, ticket, queue, a, b, c, p in rows]
    assert len(writer) == 0


@given(st.binary(max_size=400))
def test_random_bytes_are_refused_or_decoded_but_never_worse(data: bytes) -> None:
    try:
        batch = abi.decode(data)
    except (MalformedSubmission, UnsupportedAbi):
        return
    assert len(data) == abi.HEADER_BYTES + len(batch.records) * abi.RECORD_BYTES + len(batch.payload)


def test_a_record_that_points_outside_the_payload_is_refused() -> None:
    records = np.zeros(1, abi.RECORD)
    records["offset"], records["length"] = 2**32 - 1, 2**32 - 1  # their u32 sum would wrap to something small
    with pytest.raises(MalformedSubmission, match="outside the payload"):
        abi.decode(abi.encode(records, b"abc"))


def test_another_version_is_a_typed_error_that_names_ours() -> None:
    data = bytearray(abi.Writer().finish())
    data[0] = 9
    with pytest.raises(UnsupportedAbi) as e:
        abi.decode(bytes(data))
    assert e.value.fields == {"version": 9, "supported": abi.ABI_VERSION}


def test_a_submission_past_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(MalformedSubmission, match="limit"):
        abi.decode(bytes(101), limit=100)


def test_each_operation_has_exactly_one_answering_layer() -> None:
    layers = (abi.RUNTIME_OPS, abi.CONTROL_OPS, abi.WORKER_OPS)
    assert sum(len(layer) for layer in layers) == len(abi.Op)
    assert frozenset().union(*layers) == frozenset(abi.Op)
