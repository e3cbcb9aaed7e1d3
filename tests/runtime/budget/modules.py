"""Modules in bytes, made for tests: small distinct ones, and one that is hard to compile."""

from __future__ import annotations


def leb(number: int) -> bytes:
    """Encode a number as unsigned LEB128."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def module(body: bytes, pages: int = 1) -> bytes:
    """Make a core module whose `tartlet_main` has this body (locals, then code), with `pages` of 64 KiB of memory."""
    parts = {
        1: b"\x01\x60\x00\x01\x7f",
        3: b"\x01\x00",
        5: b"\x01\x00" + leb(pages),
        7: b"\x02\x06memory\x02\x00\x0ctartlet_main\x00\x00",
        10: b"\x01" + leb(len(body)) + body,
    }
    return b"\0asm\1\0\0\0" + b"".join(bytes([kind]) + leb(len(part)) + part for kind, part in parts.items())


def numbered(number: int) -> bytes:
    """Make a module that differs from those of other numbers and returns 0."""
    return module(b"\x00\x41" + leb(number % 64) + b"\x1a\x41" + leb(number // 64) + b"\x1a\x41\x00\x0b")


def hard_to_compile(code_bytes: int) -> bytes:
    """Make a module of one function with a block every nine bytes: the compiler takes about 300 bytes for each byte."""
    step = b"\x20\x00\x41\x01\x6a\x22\x00\x04\x40\x0b"
    return module(b"\x01\x01\x7f" + step * (code_bytes // len(step)) + b"\x41\x00\x0b")
