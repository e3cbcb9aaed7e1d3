"""What a program has sent to control and was told by it, so that another control can make the program's state again."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable
from typing import Final

from tartlet_common.abi import HEADER_BYTES, HEADER_STRUCT, RECORD_BYTES
from tartlet_common.errors.registry import MemoryBudgetExceeded
from tartlet_protos import control_pb2
from tartlet_runtime.budget.holding import FREE_BYTES

LIMIT_BYTES: Final = 48 << 20
"""Bytes of one program's history. A longer one is dropped, and the program ends if control dies."""
_BLOCK_BYTES: Final = 32 << 10
_LENGTHS: Final = struct.Struct("<II")


class Chunks:
    """Bytes that are appended and seldom read. All but the last ones are kept compressed: records are much alike."""

    __slots__ = ("_blocks", "_last", "kept", "size")

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._last = bytearray()
        self.size = 0
        """Bytes that were added."""
        self.kept = 0
        """Bytes that they take."""

    def add(self, records: bytes, payload: bytes) -> None:
        """Append records and the payload that they point into."""
        last = self._last
        last += _LENGTHS.pack(len(records), len(payload))
        last += records
        last += payload
        more = _LENGTHS.size + len(records) + len(payload)
        self.size += more
        self.kept += more
        if len(last) >= _BLOCK_BYTES:
            block = zlib.compress(last, 1)
            self.kept += len(block) - len(last)
            self._blocks.append(block)
            self._last = bytearray()

    def read(self) -> bytes:
        """Return all that was added."""
        return b"".join([*map(zlib.decompress, self._blocks), self._last])


class History:
    """Chunks of records in both directions, in order.

    Example:
        >>> history = History(lambda size: None)
        >>> history.sent(bytes(32), b"payload"); history.told(bytes(32), b"")
        >>> len(history.message().commands), len(history.message().answers), bool(history)
        (47, 40, True)
    """

    __slots__ = ("_closed", "_fit", "_sent", "_told", "_until", "count", "lost")

    def __init__(self, fit: Callable[[int], None]) -> None:
        """Begin empty. `fit` takes memory of the process for so many bytes, or raises MemoryBudgetExceeded."""
        self._sent, self._told = Chunks(), Chunks()
        self._fit = fit
        self._until = FREE_BYTES
        self._closed = False
        self.count = 0
        """How many records control has sent to the program."""
        self.lost = ""
        """Why the history doesn't say enough; "" if it does."""

    def __bool__(self) -> bool:
        """Return whether the program has sent anything to control."""
        return bool(self._sent.size or self.lost)

    def sent(self, records: bytes, payload: bytes) -> None:
        """Add records that leave for control, with offsets into `payload`."""
        self._add(self._sent, records, payload)

    def told(self, records: bytes, payload: bytes) -> None:
        """Add records that have come from control, with offsets into `payload`."""
        self.count += len(records) // RECORD_BYTES
        self._add(self._told, records, payload)

    def _add(self, chunks: Chunks, records: bytes, payload: bytes) -> None:
        if self.lost or self._closed:
            return
        chunks.add(records, payload)
        kept = self._sent.kept + self._told.kept
        if kept > self._until:
            self._grow(kept)
        if chunks.size > LIMIT_BYTES:
            self._lose(f"its history is longer than {LIMIT_BYTES} bytes")

    def _grow(self, kept: int) -> None:
        try:
            self._fit(kept + FREE_BYTES)
        except MemoryBudgetExceeded:
            self._lose("the runtime had no memory for its history")
        else:
            self._until = kept + FREE_BYTES

    def _lose(self, why: str) -> None:
        self._clear()
        self.lost = why

    def close(self) -> None:
        """Drop the history of a program that has ended."""
        self._clear()
        self._closed = True

    def _clear(self) -> None:
        self._sent, self._told = Chunks(), Chunks()
        self._fit(0)

    def message(self) -> control_pb2.ProgramHistory:
        """Return the history as control reads it."""
        commands, answers = self._sent.read(), self._told.read()
        return control_pb2.ProgramHistory(commands=commands, answers=answers, lost=self.lost, told=self.count)

    def begin_again(self, deliveries: Iterable[bytes], count: int) -> None:
        """Begin with what an earlier copy of the program was told, of which `count` records were control's."""
        for delivery in deliveries:
            _, _, records, _, _ = HEADER_STRUCT.unpack_from(delivery)
            end = HEADER_BYTES + records * RECORD_BYTES
            self.told(delivery[HEADER_BYTES:end], delivery[end:])
        self.count = count
