"""Checks of arguments, whose errors name the mistake: an id given as an object, a path in place of a source."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral, Real
from typing import TypeVar

from tartlet_common.errors.registry import InvalidArgument

T = TypeVar("T")

_SHOWN = 80


def shown(given: object) -> str:
    """Describe a value in a few words.

    Example:
        >>> shown("x.py"), shown("x" * 1000), shown(print)
        ("'x.py'", 'a str', 'a builtin_function_or_method')
    """
    text = repr(given)
    return text if len(text) < _SHOWN and not text.startswith("<") else f"a {type(given).__name__}"


def check_id(given: object) -> None:
    """Check that a program's id is text.

    Raises:
        InvalidArgument: it isn't; the error says where the id is found.
    """
    if isinstance(given, str):
        return
    remedy = "Give one program's id, a str."
    if isinstance(getattr(given, "program_id", None), str):
        remedy = "Give its .program_id."
    raise InvalidArgument(argument="program_id", detail=f"{shown(given)} is no id", remedy=remedy)


def check_offset(given: int) -> None:
    """Check an offset of a program's output.

    Raises:
        InvalidArgument: the offset is negative or not a whole number.
    """
    check_number("offset", given, whole=True)
    if given < 0:
        raise InvalidArgument(argument="offset", detail=f"{given} is negative")


def check_turns(first: int, count: int) -> None:
    """Check which turns of a journal are asked for.

    Raises:
        InvalidArgument: a number isn't whole, or below 1.
    """
    for name, given in (("first", first), ("count", count)):
        check_number(name, given, whole=True)
        if not 1 <= given < 1 << 31:
            raise InvalidArgument(argument=name, detail=f"{given} is no number from 1 on")


def check_texts(**given: object) -> None:
    """Check that arguments, given by name, are text that UTF-8 can encode.

    Raises:
        InvalidArgument: one of them is not text, or contains half of a surrogate pair.
    """
    check_kind(str, **given)
    for argument, text in given.items():
        try:
            str(text).encode()
        except UnicodeEncodeError as e:
            detail = f"its character {e.start + 1} is half of one, or a byte that is no UTF-8"
            raise InvalidArgument(argument=argument, detail=detail) from None


def check_kind(kind: type, **given: object) -> None:
    """Check that arguments, given by name, have the type `kind`.

    Raises:
        InvalidArgument: one of them has another type.
    """
    for argument, value in given.items():
        if not isinstance(value, kind):
            raise InvalidArgument(argument=argument, detail=f"{shown(value)} is no {kind.__name__}")


def check_number(argument: str, given: object, *, whole: bool) -> None:
    """Check that a value is a number, or with `whole` a whole number.

    Raises:
        InvalidArgument: it isn't.
    """
    if not isinstance(given, Integral if whole else Real):
        raise InvalidArgument(argument=argument, detail=f"{shown(given)} is no {'whole ' if whole else ''}number")


def all_of(kind: type[T], argument: str, given: Iterable[T]) -> list[T]:
    """Return the items as a list after checking that each has the type `kind`.

    Raises:
        InvalidArgument: `given` is a single item, or an item has another type.
    """
    if isinstance(given, kind):
        raise InvalidArgument(argument=argument, detail=f"one {kind.__name__} is no list of them", remedy="Give [it].")
    if not isinstance(given, Iterable):
        raise InvalidArgument(argument=argument, detail=f"{shown(given)} is no list of {kind.__name__}")
    values = list(given)
    for value in values:
        check_kind(kind, **{argument: value})
    return values


def message_bytes(given: bytes | str) -> bytes:
    """Return a message as bytes.

    Raises:
        InvalidArgument: the message is neither text nor bytes.
    """
    if isinstance(given, str):
        check_texts(message=given)
        return given.encode()
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    raise InvalidArgument(argument="message", detail=f"{shown(given)} is neither text nor bytes")


def seed_bytes(given: object) -> bytes:
    r"""Return a seed as bytes: of a number its lower 128 bits.

    Example:
        >>> seed_bytes(258)[:3], len(seed_bytes(-1)), seed_bytes(None)
        (b'\x02\x01\x00', 16, b'')

    Raises:
        InvalidArgument: the seed is neither a whole number nor bytes.
    """
    if given is None or isinstance(given, bytes):
        return given or b""
    if not isinstance(given, Integral):
        raise InvalidArgument(argument="seed", detail=f"{shown(given)} is neither a whole number nor 16 bytes")
    return (int(given) % (1 << 128)).to_bytes(16, "little")
