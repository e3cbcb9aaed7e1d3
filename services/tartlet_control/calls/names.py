"""Calls on names: `export_kvpage` names a table's tokens, `import_kvpage` tells them, `unexport_kvpage` forgets."""

from __future__ import annotations

from typing import Final

from tartlet_common.abi import WHOLE_TABLE, Op, Record
from tartlet_common.errors.registry import InvalidArgument, MalformedSubmission
from tartlet_control.calls.base import ControlCall
from tartlet_control.tables.programs import Command, CommandQueue

_TTL_BYTES: Final = 4


class NameCall(Command):
    """A call on a name. An awaited one that fails poisons nothing."""

    __slots__ = ("name", "op")

    def __init__(self, queue: CommandQueue, record: Record, arrived: float, name: bytes) -> None:
        super().__init__(queue, record, arrived)
        self.op = record.op
        self.size = 32 + len(name)
        try:
            self.name = name.decode()
        except UnicodeDecodeError as e:
            raise InvalidArgument(argument="name", detail=f"not UTF-8: {e}") from e


class Export(NameCall):
    """Names the first `count` tokens of `table`, followed by `tail`. `count` is None for all that the table holds."""

    __slots__ = ("count", "table", "tail", "ttl_s")

    def __init__(self, queue: CommandQueue, record: Record, arrived: float, payload: memoryview) -> None:
        end = _TTL_BYTES + record.c
        super().__init__(queue, record, arrived, bytes(payload[_TTL_BYTES:end]))
        self.table = record.a
        self.count = None if record.b == WHOLE_TABLE else record.b
        self.ttl_s = int.from_bytes(payload[:_TTL_BYTES], "little")  # 0: control's own setting
        self.tail = [int.from_bytes(payload[at : at + 4], "little") for at in range(end, len(payload), 4)]
        self.size += 4 * len(self.tail)


def parse_export(queue: CommandQueue, record: Record, payload: memoryview, arrived: float) -> Command:
    """Parse `export_kvpage`: a time, a name, and whole tokens of the vocabulary."""
    rest = len(payload) - _TTL_BYTES - record.c
    if rest < 0 or rest % 4:
        raise MalformedSubmission(
            detail=f"{len(payload)} bytes don't hold a time, {record.c} bytes of name, and tokens"
        )
    command = Export(queue, record, arrived, payload)
    if command.tail and max(command.tail) >= queue.spec.vocab_size:
        detail = f"{max(command.tail)} is not in the vocabulary of {queue.spec.vocab_size}"
        raise InvalidArgument(argument="token", detail=detail)
    return command


def parse_name(queue: CommandQueue, record: Record, payload: memoryview, arrived: float) -> Command:
    """Parse a call whose one argument is a name."""
    return NameCall(queue, record, arrived, bytes(payload))


CONTROL_CALLS: Final = (
    ControlCall(Op.EXPORT_KVPAGE, parse_export),
    ControlCall(Op.IMPORT_KVPAGE, parse_name),
    ControlCall(Op.UNEXPORT_KVPAGE, parse_name),
)
