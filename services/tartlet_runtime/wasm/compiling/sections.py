"""What a core module's section list tells: pure, and safe on any bytes."""

from __future__ import annotations

_HEADER_BYTES = 8
_START = 8
_LEB_MOST_BYTES = 5


def has_start(wasm: bytes) -> bool:
    r"""Return whether instantiating the core module runs its code; True also for bytes that make no sense.

    Example:
        >>> has_start(b"\0asm\1\0\0\0" + b"\x00\x01\x00"), has_start(b"\0asm\1\0\0\0" + b"\x08\x01\x00")
        (False, True)
    """
    at = _HEADER_BYTES
    while at < len(wasm):
        section, at = wasm[at], at + 1
        if section == _START:
            return True
        size = shift = 0
        for _ in range(_LEB_MOST_BYTES):
            if at >= len(wasm):
                return True
            byte, at = wasm[at], at + 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:  # the last byte of the number
                break
        at += size
    return at != len(wasm)
