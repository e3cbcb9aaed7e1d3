"""What a program has sent to control and was told by it, so that another control can make the program's state again."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from tartlet_common.abi import HEADER_BYTES, HEADER_STRUCT, RECORD_BYTES
from tartlet_protos import control_pb2

LIMIT_BYTES: Final = 8 << 20
"""Bytes of one program's history. A longer one is dropped, and the program ends if control dies."""
_LENGTHS: Final = struct.Struct("<II")


class History:
    """Chunks of records in both directions, in order.

    Example:
        >>> history = History()
        >>> history.sent(bytes(32), b"payload"); history.told(bytes(32), b"")
        >>> len(history.message().commands), len(history.message().answers), bool(history)
        (47, 40, True)
    """

    __slots__ = ("_closed", "_sent", "_told", "count", "lost", "size")

    def __init__(self) -> None:
        self._sent: list[bytes] = []
        self._told: list[bytes] = []
        self._closed = False
        self.count = 0
        """How many records control has sent to the program."""
        self.size = 0
        """Bytes of all chunks."""
        self.lost = ""
        """Why the history doesn't say enough; "" if it does."""

    def __bool__(self) -> bool:
        """Return whether the program has sent anything to control."""
        return bool(self._sent or self.lost)

    def sent(self, records: bytes, payload: bytes) -> None:
        """Add records that leave for control, with offsets into `payload`."""
        self._add(self._sent, records, payload)

    def told(self, records: bytes, payload: bytes) -> None:
        """Add records that have come from control, with offsets into `payload`."""
        self.count += len(records) // RECORD_BYTES
        self._add(self._told, records, payload)

    def _add(self, chunks: list[bytes], records: bytes, payload: bytes) -> None:
        if self.lost or self._closed:
            return
        chunks += (_LENGTHS.pack(len(records), len(payload)), records, payload)
        self.size += _LENGTHS.size + len(records) + len(payload)
        if self.size > LIMIT_BYTES:
            self.lose(f"its history is longer than {LIMIT_BYTES} bytes")

    def lose(self, why: str) -> None:
        """Drop the history, which can't be kept any longer."""
        self._clear()
        self.lost = why

    def close(self) -> None:
        """Drop the history of a program that has ended."""
        self._clear()
        self._closed = True

    def _clear(self) -> None:
        self._sent, self._told = [], []
        self.size = 0

    def message(self) -> control_pb2.ProgramHistory:
        """Return the history as control reads it."""
        commands, answers = b"".join(self._sent), b"".join(self._told)
        return control_pb2.ProgramHistory(commands=commands, answers=answers, lost=self.lost, told=self.count)

    def begin_again(self, deliveries: Iterable[bytes], count: int) -> None:
        """Begin with what an earlier copy of the program was told, of which `count` records were control's."""
        for delivery in deliveries:
            _, _, records, _, _ = HEADER_STRUCT.unpack_from(delivery)
            end = HEADER_BYTES + records * RECORD_BYTES
            self.told(delivery[HEADER_BYTES:end], delivery[end:])
        self.count = count
