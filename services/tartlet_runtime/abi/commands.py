"""A program's commands one by one, in words, for comparisons of two runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tartlet_common.abi import Flag, Op, Record, decode

_SHOWN_BYTES = 60
_TEXTS = frozenset(
    {Op.LOG, Op.SEND, Op.TOKENIZE, Op.GET_MODEL, Op.FORMAT_CHAT, Op.AVAILABLE_MODELS, Op.GRAMMAR, Op.SPAWN}
)
_NUMBERS = 8


class Command(NamedTuple):
    """One command with its own payload; where the payload stood in its submission doesn't matter."""

    op: int
    flags: int
    ticket: int
    queue: int
    a: int
    b: int
    c: int
    payload: bytes

    def __str__(self) -> str:
        """Return the command in words.

        Example:
            >>> str(Command(Op.SEND, 0, 7, 0, 0, 0, 0, b"hello"))
            "send 'hello' (ticket 7)"
        """
        name = Op(self.op).name.lower() if self.op in Op.__members__.values() else f"operation {self.op}"
        numbers = "".join(
            f" {key}={value}" for key, value in zip("abc", (self.a, self.b, self.c), strict=True) if value
        )
        queue = f" queue={self.queue}" if self.queue else ""
        awaited = ", awaited" if self.flags & Flag.AWAIT else ""
        return f"{name}{queue}{numbers}{self._told_payload()} (ticket {self.ticket}{awaited})"

    def _told_payload(self) -> str:
        data = self.payload
        if not data:
            return ""
        if self.op in _TEXTS:
            text = data.decode("utf-8", "replace")
            return f" {text[:_SHOWN_BYTES]!r}" + ("..." if len(text) > _SHOWN_BYTES else "")
        words = [int.from_bytes(data[at : at + 4], "little") for at in range(0, min(len(data), 4 * _NUMBERS), 4)]
        return f" [{', '.join(map(str, words))}{', ...' if len(data) > 4 * _NUMBERS else ''}]"


def commands_of(submission: bytes) -> Iterator[Command]:
    """Yield the commands of a submission.

    Raises:
        MalformedSubmission, UnsupportedAbi: it isn't one.
    """
    batch = decode(submission)
    for row in batch.records.tolist():
        record = Record._make(row)
        payload = batch.payload[record.offset : record.offset + record.length]
        yield Command(*record[:7], payload)
