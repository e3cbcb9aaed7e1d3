"""What waits to be told to a guest: records and their payload, in the order they came."""

from __future__ import annotations

from collections import deque
from struct import Struct

from tartlet_common.abi import ABI_VERSION, RECORD_BYTES, Event
from tartlet_common.errors.registry import TartletError
from tartlet_runtime.abi.submission import HEADER_STRUCT, ROW_STRUCT

_OFFSET = Struct("<I")
_OFFSET_AT = 24  # of the offset in a record
MAX_DELIVERY_BYTES = 4 << 20
"""A delivery is cut between records so that guests can have a fixed buffer; a single larger record still goes out."""


def delivery(count: int, records: bytes, payload: bytes) -> bytes:
    """Header, records and payload as one byte string."""
    return HEADER_STRUCT.pack(ABI_VERSION, 0, count, len(payload), 0) + records + payload


TIMER_DELIVERY = delivery(1, ROW_STRUCT.pack(Event.TIMER, 0, 0, 0, 0, 0, 0, 0, 0), b"")


class Inbox:
    """Chunks of records with payload.

    Example:
        >>> inbox = Inbox()
        >>> inbox.result(ticket=7, payload=b"hi")
        >>> len(inbox), len(inbox.take(10))
        (1, 50)
    """

    __slots__ = ("_chunks", "_taken", "count", "payload_bytes")

    def __init__(self) -> None:
        """Start empty."""
        self._chunks: deque[tuple[int, bytes, bytes]] = deque()
        self._taken = 0  # records of the first chunk that were delivered: it is not copied for each of them
        self.count = 0
        self.payload_bytes = 0

    def __len__(self) -> int:
        """Number of waiting records."""
        return self.count

    def add(self, count: int, records: bytes, payload: bytes) -> None:
        """Append `count` records (abi.RECORD) whose offsets point into `payload`."""
        self._chunks.append((count, records, payload))
        self.count += count
        self.payload_bytes += len(payload)

    def result(self, ticket: int, payload: bytes, a: int = 0, b: int = 0, c: int = 0) -> None:
        """Append the answer to one command."""
        self.add(1, ROW_STRUCT.pack(Event.RESULT, 0, ticket, 0, a, b, c, 0, len(payload)), payload)

    def failure(self, ticket: int, queue: int, error: TartletError) -> None:
        """Append the failure of one awaited command."""
        fields = error.to_json()
        row = ROW_STRUCT.pack(Event.FAILURE, 1, ticket, queue, error.number, 0, 0, 0, len(fields))
        self.add(1, row, fields)

    def take(self, max_records: int) -> bytes:
        """One delivery of at most `max_records` records (0: no limit), removed from the inbox."""
        chunks = self._chunks
        if len(chunks) == 1 and not self._taken and (chunks[0][0] <= max_records or not max_records):
            count, records, payload = chunks.popleft()
            self.count = self.payload_bytes = 0
            return delivery(count, records, payload)
        return self._take_merged(max_records or self.count)

    def _take_merged(self, max_records: int) -> bytes:
        records, payload = bytearray(), bytearray()
        taken = 0
        while self._chunks and taken < max_records:
            whole, rows, chunk_payload = self._chunks[0]
            first, count = self._taken, whole - self._taken
            size = count * RECORD_BYTES + len(chunk_payload)
            if taken and len(records) + len(payload) + size > MAX_DELIVERY_BYTES:
                break
            if count > max_records - taken:
                count = max_records - taken
                self._taken = first + count
            else:
                self._chunks.popleft()
                self._taken = 0
                self.payload_bytes -= len(chunk_payload)
            rows = rows[first * RECORD_BYTES : (first + count) * RECORD_BYTES]
            _append(records, payload, rows, chunk_payload)
            taken += count
        self.count -= taken
        return delivery(taken, bytes(records), bytes(payload))


def _append(records: bytearray, payload: bytearray, rows: bytes, rows_payload: bytes) -> None:
    """Add rows with just the part of `rows_payload` that they point into (a chunk may be taken bit by bit)."""
    start = len(records)
    records += rows
    spans = [row[7:9] for row in ROW_STRUCT.iter_unpack(rows)]
    if not any(offset or length for offset, length in spans):
        return
    low = min((o for o, n in spans if n), default=0)
    high = max((o + n for o, n in spans if n), default=0)
    shift = len(payload) - low
    for i, (offset, length) in enumerate(spans):
        _OFFSET.pack_into(records, start + i * RECORD_BYTES + _OFFSET_AT, offset + shift if length else 0)
    payload += rows_payload[low:high]
