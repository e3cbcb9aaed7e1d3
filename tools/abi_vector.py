"""The form of the ABI's test vectors, which `gen_abi_vectors` writes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tartlet_common.abi import Flag, Op, Writer


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a vector."""

    op: int
    a: int = 0
    b: int = 0
    c: int = 0
    payload: bytes = b""
    queue: int = 0
    flags: int = 0
    ticket: int = 1

    def as_json(self) -> dict[str, Any]:
        """Return the fields that are not zero, with the payload as hexadecimal."""
        fields = {name: getattr(self, name) for name in ("op", "flags", "ticket", "queue", "a", "b", "c")}
        return {**{name: int(value) for name, value in fields.items() if value}, "payload": self.payload.hex()}


@dataclass(frozen=True, slots=True)
class Vector:
    """A submission or delivery: its arguments, records and bytes."""

    name: str
    kind: str  # "submission" | "delivery"
    records: tuple[Record, ...]
    arguments: dict[str, Any] = field(default_factory=dict)  # of the call that makes the record

    def as_json(self) -> dict[str, Any]:
        """Return the vector in the form of the file."""
        writer = Writer()
        for record in self.records:
            fields = {name: getattr(record, name) for name in Record.__slots__ if name != "op"}
            writer.add(record.op, **fields)
        return {
            "name": self.name,
            "kind": self.kind,
            "arguments": self.arguments,
            "records": [record.as_json() for record in self.records],
            "bytes": writer.finish().hex(),
        }


def submission(op: Op, record: Record, name: str = "", **arguments: Any) -> Vector:
    """Return the vector of a call with these arguments, which makes the record."""
    return Vector(name or op.name.lower(), "submission", (record,), arguments)


def awaited(op: Op, *, queue: int = 0, a: int = 0, b: int = 0, c: int = 0, payload: bytes = b"") -> Record:
    """Return a record that is awaited."""
    return Record(op, a, b, c, payload, queue, Flag.AWAIT)
