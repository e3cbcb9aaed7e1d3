"""Taking a guest's submission apart: what the runtime answers itself, and the rest, which control gets as it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tartlet_common.abi import HEADER_BYTES, RECORD_BYTES, RECORD_STRUCT, Op, Record, read_header
from tartlet_common.errors.registry import MalformedSubmission, UnknownOperation
from tartlet_runtime.abi.limits import MAX_SUBMISSION_BYTES

_FIRST_CONTROL_OP = int(Op.CREATE_QUEUE)
_SAMPLE = int(Op.SAMPLE)
_DIST = int(Op.GET_NEXT_DIST)
_KNOWN = frozenset(int(op) for op in Op)


@dataclass(slots=True)
class Submission:
    """A checked submission: records that the runtime answers, and columns for control."""

    local: list[Record]
    local_payload: bytes  # what the local records' offsets point into
    count: int  # records for control
    records: bytes  # [count] of abi.RECORD
    payload: bytes  # what their offsets point into
    samples: list[int]  # tickets of SAMPLE among them
    dists: list[tuple[int, int]]  # tickets of GET_NEXT_DIST among them, and of how many embeds


def parse(data: bytes) -> Submission:
    """Check and split a submission.

    Records are read one by one: most submissions hold a few, for which numpy takes 20 times as long.

    Raises:
        UnsupportedAbi: the header's version isn't ours.
        MalformedSubmission: lengths don't fit together, a record points outside the payload, or records share payload.
        UnknownOperation: a record's operation isn't in `abi.Op`.
    """
    count, payload_bytes = read_header(data, limit=MAX_SUBMISSION_BYTES)
    records_end = HEADER_BYTES + count * RECORD_BYTES
    rows, payload = data[HEADER_BYTES:records_end], data[records_end:]
    local: list[Record] = []
    samples: list[int] = []
    dists: list[tuple[int, int]] = []
    named_bytes = 0
    for row in RECORD_STRUCT.iter_unpack(rows):
        op, _, ticket, _, _, _, _, offset, length = row
        if op not in _KNOWN:
            raise UnknownOperation(op=op)
        if offset + length > payload_bytes:
            raise MalformedSubmission(detail="a record points outside the payload")
        named_bytes += length
        if op < _FIRST_CONTROL_OP:
            local.append(Record._make(row))
        elif op == _SAMPLE:
            samples.append(ticket)
        elif op == _DIST:
            dists.append((ticket, length // 4))
    if named_bytes > payload_bytes:  # else a small submission could grow without bound where payloads are copied
        raise MalformedSubmission(detail=f"records name {named_bytes} bytes of a payload of {payload_bytes}")
    if not local:
        return Submission(local, b"", count, rows, payload, samples, dists)
    if len(local) == count:
        return Submission(local, payload, 0, b"", b"", samples, dists)
    for_control = (row for row in RECORD_STRUCT.iter_unpack(rows) if row[0] >= _FIRST_CONTROL_OP)
    records, rest = with_own_payload(for_control, payload)  # a program's output is none of control's business
    return Submission(local, payload, count - len(local), records, rest, samples, dists)


def with_own_payload(rows: Iterable[tuple[int, ...]], payload: bytes) -> tuple[bytes, bytes]:
    """Return records packed, and a payload that holds what these records name and nothing else.

    Args:
        rows: records, unpacked.
        payload: what their offsets point into.
    """
    packed, parts, at = bytearray(), [], 0
    for *fields, offset, length in rows:
        packed += RECORD_STRUCT.pack(*fields, at, length)
        parts.append(payload[offset : offset + length])
        at += length
    return bytes(packed), b"".join(parts)
