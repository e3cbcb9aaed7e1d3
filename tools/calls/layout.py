"""The form of a call in the registry, and an encoder that reads it."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from tartlet_common.abi import Flag, Op

ArgValue = Any
"""A number, a list of numbers, text, or bytes; None for a mask that is left out."""


class Kind(Enum):
    """The form of an argument."""

    U32 = "u32"
    U64 = "u64"
    F32 = "f32"
    FLAG = "bool"
    IDS = "u32[]"
    REALS = "f32[]"
    BYTES = "bytes"
    TEXT = "UTF-8"
    JSON = "JSON"
    BITS = "bits"  # packed, least significant bit first; None: there are none


SCALARS: Final = {Kind.U32: "I", Kind.U64: "Q", Kind.F32: "f"}
"""`struct` formats of the kinds that stand in a payload as one number."""
ITEM_BYTES: Final = {Kind.IDS: 4, Kind.REALS: 4, Kind.BYTES: 1, Kind.TEXT: 1, Kind.JSON: 1, Kind.BITS: 1}
"""Bytes of an item of the kinds that have a length."""


class By(Enum):
    """Who answers a call, and when."""

    RUNTIME = "runtime"
    CONTROL = "control"
    CONTROL_QUEUE = "control, in its queue"
    WORKER = "worker, in its queue"


class Answers(Enum):
    """When a call is answered."""

    NEVER = "never"
    IF_AWAITED = "if awaited"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class Arg:
    """An argument: its name, form and meaning.

    Attributes:
        about: what it means, with its shape.
    """

    name: str
    kind: Kind
    about: str = ""


def args(text: str) -> tuple[Arg, ...]:
    """Read arguments, one a line: `name: kind, meaning`.

    Example:
        >>> args("page: u32, the page")
        (Arg(name='page', kind=<Kind.U32: 'u32'>, about='the page'),)
    """
    found = []
    for line in filter(None, map(str.strip, text.splitlines())):
        name, kind, about = re.fullmatch(r"(\w+): ([\w\[\]-]+)(?:, (.*))?", line).groups()  # type: ignore[union-attr]
        found.append(Arg(name, Kind(kind), about or ""))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Layout:
    """Arguments in the order in which their bytes stand.

    Attributes:
        name: of the packers.
        args: the arguments.
        payload: names of arguments; `#name` is the number of an argument's items (u32), `?name` 1 if it is given.
    """

    name: str
    args: tuple[Arg, ...]
    payload: tuple[str, ...] = ()

    def arg(self, named: str) -> Arg:
        """Return the argument that a part of a layout is about.

        Raises:
            KeyError: there is none.
        """
        return {arg.name: arg for arg in self.args}[named.lstrip("#?")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Layout):
    """A call of the ABI.

    Attributes:
        a, b, c: what the record's fields hold, as parts of `payload` do; nothing for a field that stays 0.
        trait: of the paper, or of this project.
        queue: whether it names a command queue.
        answer: what the answer holds.
        errors: the names of errors that this call raises, beside those that every call does.
        section: of the paper; nothing if the paper doesn't have the call.
        sdk: the function of the Python SDK, if it has another name.
        test: a test that fails if the call does nothing, as `path::function`.
    """

    op: Op
    by: By
    answers: Answers
    trait: str
    a: str = ""
    b: str = ""
    c: str = ""
    queue: bool = False
    answer: str = ""
    errors: tuple[str, ...] = ()
    section: str = ""
    sdk: str = ""
    test: str = ""

    @property
    def fields(self) -> tuple[str, str, str]:
        """What the fields a, b and c hold."""
        return self.a, self.b, self.c


def raw(kind: Kind, value: ArgValue) -> bytes:
    """Return the bytes of an argument with a length."""
    match kind:
        case Kind.IDS:
            return struct.pack(f"<{len(value)}I", *value)
        case Kind.REALS:
            return struct.pack(f"<{len(value)}f", *value)
        case Kind.TEXT | Kind.JSON if isinstance(value, str):
            return value.encode()
        case _:
            return b"" if value is None else bytes(value)


def _number(layout: Layout, part: str, given: Mapping[str, ArgValue]) -> float:
    arg = layout.arg(part)
    if part.startswith("#"):
        return len(raw(arg.kind, given[arg.name])) // ITEM_BYTES[arg.kind]
    if part.startswith("?"):
        return int(given[arg.name] is not None)
    return given[arg.name]  # type: ignore[no-any-return]


def _parts(layout: Layout, given: Mapping[str, ArgValue]) -> Iterator[bytes]:
    for part in layout.payload:
        arg = layout.arg(part)
        if part[0] in "#?":
            yield struct.pack("<I", _number(layout, part, given))
        elif arg.kind in SCALARS:
            yield struct.pack(f"<{SCALARS[arg.kind]}", given[arg.name])
        else:
            yield raw(arg.kind, given[arg.name])


def payload(layout: Layout, given: Mapping[str, ArgValue]) -> bytes:
    """Return the payload of a layout with these arguments."""
    return b"".join(_parts(layout, given))


def numbers(call: Call, given: Mapping[str, ArgValue]) -> tuple[int, int, int]:
    """Return the fields a, b and c of a call with these arguments."""
    a, b, c = (int(_number(call, part, given)) if part else 0 for part in call.fields)
    return a, b, c


def flags(call: Call, *, awaited: bool) -> int:
    """Return the flags of a call's record."""
    return int(Flag.AWAIT) if awaited and call.answers is not Answers.NEVER else 0
