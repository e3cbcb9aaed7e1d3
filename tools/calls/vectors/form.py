"""The form of a test vector."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tartlet_common.abi import Op, Writer
from tools.calls.layout import Arg, ArgValue, Kind, flags, numbers, payload
from tools.calls.registry import CALLS

QUEUE = 3
EVERY_BYTE = bytes(range(256))


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
    """A submission or delivery: its arguments, records and bytes.

    Attributes:
        arguments: of the function of an SDK that makes the record, as a program gives them.
        packed: of the packer that makes the record, as the registry names them; None for a delivery.
    """

    name: str
    kind: str  # "submission" | "delivery"
    records: tuple[Record, ...]
    arguments: dict[str, Any] = field(default_factory=dict)
    packed: dict[str, ArgValue] | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the vector in the form of the file."""
        writer = Writer()
        for record in self.records:
            fields = {name: getattr(record, name) for name in Record.__slots__ if name != "op"}
            writer.add(record.op, **fields)
        told = {
            "name": self.name,
            "kind": self.kind,
            "arguments": self.arguments,
            "records": [record.as_json() for record in self.records],
            "bytes": writer.finish().hex(),
        }
        if self.packed is not None:
            kinds = CALLS[Op(self.records[0].op)].args
            told["packed"] = {arg.name: _shown(arg, self.packed[arg.name]) for arg in kinds}
        return told


def _shown(arg: Arg, value: ArgValue) -> Any:
    """Return an argument as it stands in the file: text as it is, and bytes as hexadecimal."""
    return value.hex() if isinstance(value, bytes) and arg.kind not in {Kind.TEXT, Kind.JSON} else value


def submission(
    op: Op, packed: dict[str, ArgValue], name: str = "", *, awaited: bool = False, **arguments: Any
) -> Vector:
    """Return the vector of a call: `packed` are its packer's arguments, `arguments` those of a program."""
    call = CALLS[op]
    a, b, c = numbers(call, packed)
    queue = QUEUE if call.queue else 0
    record = Record(op, a, b, c, payload(call, packed), queue, flags(call, awaited=awaited))
    queues = {"queue": QUEUE} if call.queue else {}
    return Vector(name or call.name, "submission", (record,), {**queues, **arguments}, packed)
