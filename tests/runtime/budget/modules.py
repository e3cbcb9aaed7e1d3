"""Modules in bytes, made for tests: small distinct ones, and one that is hard to compile."""

from __future__ import annotations

_EXPORTS = b"\x02\x06memory\x02\x00\x0ctartlet_main\x00\x00"


def leb(number: int) -> bytes:
    """Encode a number as unsigned LEB128."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def sections(parts: dict[int, bytes]) -> bytes:
    """Join a module's sections, by their numbers."""
    return b"\0asm\1\0\0\0" + b"".join(bytes([kind]) + leb(len(part)) + part for kind, part in parts.items())


def module(body: bytes, pages: int = 1) -> bytes:
    """Make a core module whose `tartlet_main` has this body (locals, then code), with `pages` of 64 KiB of memory."""
    parts = {
        1: b"\x01\x60\x00\x01\x7f",
        3: b"\x01\x00",
        5: b"\x01\x00" + leb(pages),
        7: _EXPORTS,
        10: b"\x01" + leb(len(body)) + body,
    }
    return sections(parts)


def numbered(number: int) -> bytes:
    """Make a module that differs from those of other numbers and returns 0."""
    return module(b"\x00\x41" + leb(number % 64) + b"\x1a\x41" + leb(number // 64) + b"\x1a\x41\x00\x0b")


def hard_to_compile() -> bytes:
    """Make a module of 15 MB of which each core compiles one of two large functions.

    The compiler takes about 880 bytes for each byte: 6.5 GB for a function, 13 GB where two cores compile.
    """
    calls = b"\x00" + b"\x10\x01" * 3_750_000 + b"\x0b"  # no function has more bytes than 7,654,321
    main = b"\x00\x41\x00\x0b"
    parts = {
        1: b"\x02\x60\x00\x01\x7f\x60\x00\x00",
        3: b"\x03\x00\x01\x01",
        5: b"\x01\x00\x01",
        7: _EXPORTS,
        10: b"\x03" + b"".join(leb(len(body)) + body for body in (main, calls, calls)),
    }
    return sections(parts)
