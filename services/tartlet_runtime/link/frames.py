"""Columns between runtime and control: one frame holds the commands, or the deliveries, of many programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tartlet_common.abi import RECORD, RECORD_BYTES, RECORD_STRUCT
from tartlet_common.errors.registry import MalformedSubmission
from tartlet_protos import control_pb2
from tartlet_runtime.abi.submission import with_own_payload

MAX_FRAME_BYTES = (4 << 20) - (64 << 10)
"""Frames stay below gRPC's message limit, with room for some starts and ends; a single command always fits."""

_HANDLE_BYTES = 4
_BYTES_PER_COMMAND = RECORD_BYTES + _HANDLE_BYTES


class Columns(NamedTuple):
    """One frame's commands, as in control.proto."""

    handles: bytes
    records: bytes
    payload: bytes


class Outbox:
    """Commands of all programs since the last flush."""

    __slots__ = ("_parts", "commands")

    def __init__(self) -> None:
        """Start empty."""
        self._parts: list[tuple[int, int, bytes, bytes]] = []
        self.commands = 0

    def add(self, handle: int, count: int, records: bytes, payload: bytes) -> None:
        """Append `count` records of one program, offsets into `payload`."""
        self.commands += count
        if count > 1 and count * _BYTES_PER_COMMAND + len(payload) > MAX_FRAME_BYTES:
            self._parts += _cut(handle, records, payload)
        else:
            self._parts.append((handle, count, records, payload))

    def forget(self, handle: int) -> None:
        """Drop the unsent commands of a program that has ended."""
        self._parts = [part for part in self._parts if part[0] != handle]
        self.commands = sum(part[1] for part in self._parts)

    def take(self) -> Iterator[Columns]:
        """Remove all commands and return them in order, cut into frames."""
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


def _cut(handle: int, records: bytes, payload: bytes) -> Iterator[tuple[int, int, bytes, bytes]]:
    """Split a program's commands, too many for one frame, into parts that fit; each has its own payload."""
    rows = np.frombuffer(records, RECORD)
    ends = np.cumsum(rows["length"].astype(np.int64) + _BYTES_PER_COMMAND)
    start, before = 0, 0
    while start < len(rows):
        end = max(start + 1, int(np.searchsorted(ends, before + MAX_FRAME_BYTES, "right")))
        own, part = with_own_payload(
            RECORD_STRUCT.iter_unpack(records[start * RECORD_BYTES : end * RECORD_BYTES]), payload
        )
        yield handle, end - start, own, part
        start, before = end, int(ends[end - 1])


def _pack(parts: list[tuple[int, int, bytes, bytes]]) -> Columns:
    if len(parts) == 1:
        handle, count, data, payload = parts[0]
        return Columns(handle.to_bytes(4, "little") * count, data, payload)
    counts = np.array([part[1] for part in parts])
    records = np.frombuffer(b"".join([part[2] for part in parts]), RECORD).copy()
    payload_lengths = np.array([len(part[3]) for part in parts], np.uint32)
    bases = np.cumsum(payload_lengths, dtype=np.uint32) - payload_lengths
    records["offset"] += np.repeat(bases, counts)
    handles = np.repeat(np.array([part[0] for part in parts], "<u4"), counts)
    return Columns(handles.tobytes(), records.tobytes(), b"".join([part[3] for part in parts]))


def split_deliveries(frame: control_pb2.Deliveries) -> Iterator[tuple[int, int, bytes, bytes]]:
    """Each program's share: handle, number of records, records, payload; in frame order within a program.

    Raises:
        MalformedSubmission: the columns don't fit together.
    """
    packed, rows, payload = frame.handles, frame.records, frame.payload
    if len(packed) == _HANDLE_BYTES and len(rows) == RECORD_BYTES:
        *_, offset, length = RECORD_STRUCT.unpack(rows)
        if offset == 0 and length == len(payload):  # one answer, without numpy: 6% of a call
            yield int.from_bytes(packed, "little"), 1, rows, payload
            return
    handles = np.frombuffer(packed, "<u4") if len(packed) % 4 == 0 else None
    if handles is None or len(rows) != len(handles) * RECORD_BYTES:
        raise MalformedSubmission(detail="a frame's columns differ in length")
    if not len(handles):
        return
    records = np.frombuffer(rows, RECORD)
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
    data = records.tobytes() if order is not None else rows
    for handle, start, end in zip(names, cuts[:-1], cuts[1:], strict=True):
        mine = data[start * RECORD_BYTES : end * RECORD_BYTES]
        yield (
            handle,
            end - start,
            *(with_own_payload(RECORD_STRUCT.iter_unpack(mine), payload) if payload else (mine, b"")),
        )
