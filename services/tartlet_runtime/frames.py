"""Columns between runtime and control: many programs' commands in, many programs' deliveries out (invariant 1)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tartlet_common.abi import RECORD, RECORD_BYTES
from tartlet_common.errors import MalformedSubmission
from tartlet_protos import control_pb2
from tartlet_runtime.submission import ROW_STRUCT

MAX_FRAME_BYTES = (4 << 20) - (64 << 10)
"""Frames stay below gRPC's message limit; a single submission is smaller by itself."""

_HANDLE_BYTES = 4
_BYTES_PER_COMMAND = RECORD_BYTES + _HANDLE_BYTES


class Outbox:
    """Commands of all programs since the last flush."""

    __slots__ = ("_parts", "commands")

    def __init__(self) -> None:
        """Start empty."""
        self._parts: list[tuple[int, int, bytes, bytes]] = []
        self.commands = 0

    def add(self, handle: int, count: int, records: bytes, payload: bytes) -> None:
        """Append `count` records of one program, offsets into `payload`."""
        self._parts.append((handle, count, records, payload))
        self.commands += count

    def forget(self, handle: int) -> None:
        """Drop what a program that has ended did not get sent."""
        self._parts = [part for part in self._parts if part[0] != handle]

    def take(self) -> Iterator[control_pb2.Commands]:
        """Everything as frames' columns, in order; the outbox is empty again."""
        parts, self._parts, self.commands = self._parts, [], 0
        start, size = 0, 0
        for i, (_, count, _, payload) in enumerate(parts):
            more = count * _BYTES_PER_COMMAND + len(payload)
            if i > start and size + more > MAX_FRAME_BYTES:
                yield _pack(parts[start:i])
                start, size = i, 0
            size += more
        if start < len(parts):
            yield _pack(parts[start:])


def _pack(parts: list[tuple[int, int, bytes, bytes]]) -> control_pb2.Commands:
    if len(parts) == 1:
        handle, count, data, payload = parts[0]
        return control_pb2.Commands(handles=handle.to_bytes(4, "little") * count, records=data, payload=payload)
    counts = np.array([part[1] for part in parts])
    records = np.frombuffer(b"".join([part[2] for part in parts]), RECORD).copy()
    payload_lengths = np.array([len(part[3]) for part in parts], np.uint32)
    bases = np.cumsum(payload_lengths, dtype=np.uint32) - payload_lengths
    records["offset"] += np.repeat(bases, counts)
    handles = np.repeat(np.array([part[0] for part in parts], "<u4"), counts)
    return control_pb2.Commands(
        handles=handles.tobytes(), records=records.tobytes(), payload=b"".join([part[3] for part in parts])
    )


def split_deliveries(frame: control_pb2.Deliveries) -> Iterator[tuple[int, int, bytes, bytes]]:
    """Each program's share: handle, number of records, records, payload; in frame order within a program.

    Raises:
        MalformedSubmission: the columns don't fit together.
    """
    if len(frame.handles) == _HANDLE_BYTES and len(frame.records) == RECORD_BYTES:
        *_, offset, length = ROW_STRUCT.unpack(frame.records)
        if offset == 0 and length == len(frame.payload):  # one answer: numpy would take longer than all the rest
            yield int.from_bytes(frame.handles, "little"), 1, frame.records, frame.payload
            return
    handles = np.frombuffer(frame.handles, "<u4") if len(frame.handles) % 4 == 0 else None
    if handles is None or len(frame.records) != len(handles) * RECORD_BYTES:
        raise MalformedSubmission(detail="a frame's columns differ in length")
    if not len(handles):
        return
    records = np.frombuffer(frame.records, RECORD)
    payload = frame.payload
    if payload and int((records["offset"].astype(np.uint64) + records["length"]).max()) > len(payload):
        raise MalformedSubmission(detail="a frame's record points outside its payload")
    if not payload and int(records["length"].max()):
        raise MalformedSubmission(detail="a frame's record points outside its payload")
    order = None
    if (handles[1:] < handles[:-1]).any():
        order = np.argsort(handles, kind="stable")
        handles, records = handles[order], records[order]
    cuts = [0, *(np.flatnonzero(handles[1:] != handles[:-1]) + 1).tolist(), len(handles)]
    names = handles[cuts[:-1]].tolist()
    data = records.tobytes() if order is not None else frame.records
    for handle, start, end in zip(names, cuts[:-1], cuts[1:], strict=True):
        rows = data[start * RECORD_BYTES : end * RECORD_BYTES]
        if payload:
            rows, own = _own_payload(records[start:end], payload)
            yield handle, end - start, rows, own
        else:
            yield handle, end - start, rows, b""


def _own_payload(records: np.ndarray, payload: bytes) -> tuple[bytes, bytes]:
    """One program's records with offsets into a payload of their own."""
    lengths = records["length"].tolist()
    if not any(lengths):
        return records.tobytes(), b""
    own = b"".join([payload[o : o + n] for o, n in zip(records["offset"].tolist(), lengths, strict=True)])
    mine = records.copy()
    ends = np.cumsum(records["length"], dtype=np.uint32)
    mine["offset"] = ends - records["length"]
    return mine.tobytes(), own
