"""Taking a guest's submission apart: what the runtime answers itself, and the rest, which control gets as it is.

A few records are cheaper to read with `struct` than with numpy, many the other way; both paths give the same answers
(tests hold them together).
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

import numpy as np

from tartlet_common.abi import HEADER_BYTES, RECORD, RECORD_BYTES, Op, decode
from tartlet_common.errors.registry import MalformedSubmission, UnknownOperation
from tartlet_runtime.abi.limits import MAX_SUBMISSION_BYTES

Row = tuple[int, int, int, int, int, int, int, int, int]
"""A record: op, flags, ticket, queue, a, b, c, offset, length."""

HEADER_STRUCT = Struct("<HHIII")
ROW_STRUCT = Struct("<HHIIIIIII")

_FIRST_CONTROL_OP = int(Op.CREATE_QUEUE)
_SAMPLE = int(Op.SAMPLE)
_DIST = int(Op.GET_NEXT_DIST)
_KNOWN = frozenset(int(op) for op in Op)
_FEW = 24  # records up to which struct is faster


@dataclass(slots=True)
class Submission:
    """A checked submission: rows that the runtime answers, and columns for control."""

    local: list[Row]
    local_payload: bytes  # what the rows' offsets point into
    count: int  # records for control
    records: bytes  # [count] of abi.RECORD
    payload: bytes  # what their offsets point into
    samples: list[int]  # tickets of SAMPLE among them
    dists: list[tuple[int, int]]  # tickets of GET_NEXT_DIST among them, and of how many embeds


def parse(data: bytes) -> Submission:
    """Check and split a submission.

    Raises:
        UnsupportedAbi: the header's version isn't ours.
        MalformedSubmission: lengths don't fit together, a record points outside the payload, or records share payload.
        UnknownOperation: a record's operation isn't in `abi.Op`.
    """
    size = len(data)
    if HEADER_BYTES <= size <= MAX_SUBMISSION_BYTES:
        version, _, count, payload_bytes, _ = HEADER_STRUCT.unpack_from(data)
        end = HEADER_BYTES + count * RECORD_BYTES
        if version == 1 and count <= _FEW and end + payload_bytes == size:
            few = _parse_few(data, count, end, payload_bytes)
            if few is not None:
                return few
    return _parse_many(data)


def _parse_few(data: bytes, count: int, end: int, payload_bytes: int) -> Submission | None:
    """As `_parse_many`, for a sound submission of few records; None if something is wrong with it."""
    local: list[Row] = []
    samples: list[int] = []
    dists: list[tuple[int, int]] = []
    named = 0  # bytes of payload
    for row in ROW_STRUCT.iter_unpack(data[HEADER_BYTES:end]):
        op = row[0]
        if op not in _KNOWN or row[7] + row[8] > payload_bytes:
            return None
        named += row[8]
        if op < _FIRST_CONTROL_OP:
            local.append(row)
        elif op == _SAMPLE:
            samples.append(row[2])
        elif op == _DIST:
            dists.append((row[2], row[8] // 4))
    if named > payload_bytes:
        return None
    payload = data[end:]
    if not local:
        return Submission(local, b"", count, data[HEADER_BYTES:end], payload, samples, dists)
    if len(local) == count:
        return Submission(local, payload, 0, b"", b"", samples, dists)
    records, rest = _without_local(np.frombuffer(data, RECORD, count, HEADER_BYTES), payload)
    return Submission(local, payload, count - len(local), records, rest, samples, dists)


def _parse_many(data: bytes) -> Submission:
    batch = decode(data, limit=MAX_SUBMISSION_BYTES)
    records, payload = batch.records, batch.payload
    named = int(records["length"].sum(dtype=np.uint64))
    if named > len(payload):  # else a small submission could grow without bound where payloads are copied
        raise MalformedSubmission(detail=f"records name {named} bytes of a payload of {len(payload)}")
    ops = records["op"]
    for op in np.unique(ops).tolist():
        if op not in _KNOWN:
            raise UnknownOperation(op=op)
    is_local = ops < _FIRST_CONTROL_OP
    samples = records["ticket"][ops == _SAMPLE].tolist()
    asked = records[ops == _DIST]
    dists = list(zip(asked["ticket"].tolist(), (asked["length"] // 4).tolist(), strict=True))
    if not is_local.any():
        return Submission([], b"", len(records), records.tobytes(), payload, samples, dists)
    local = records[is_local].tolist()
    control_records, rest = _without_local(records, payload) if len(local) < len(records) else (b"", b"")
    return Submission(local, payload, len(records) - len(local), control_records, rest, samples, dists)


def _without_local(records: np.ndarray, payload: bytes) -> tuple[bytes, bytes]:
    """The records for control alone, with only their payload: a program's output is none of control's business."""
    kept = records[records["op"] >= _FIRST_CONTROL_OP].copy()
    parts = [payload[o : o + n] for o, n in zip(kept["offset"].tolist(), kept["length"].tolist(), strict=True)]
    lengths = kept["length"].astype(np.uint64)
    kept["offset"] = (np.cumsum(lengths) - lengths).astype(np.uint32)
    return kept.tobytes(), b"".join(parts)
