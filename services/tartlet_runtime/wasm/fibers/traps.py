"""Translate how a guest stopped into one typed error. Pure."""

from __future__ import annotations

import re

from tartlet_common.errors.registry import NotAllowed, ProgramMemoryExceeded, ProgramTrapped, TartletError

_UNKNOWN_IMPORT = re.compile(r"unknown import: `([^`]*)`")
_OUT_OF_MEMORY = re.compile(r"memory minimum size of .* exceeds|exceeds? (?:the )?memory limit|allocation .*too large")
_DIED_OF_MEMORY = re.compile(rb"MemoryError|memory allocation of \d+ bytes failed")
"""In the last words of the Python guest: its glue to the host panics where it gets no memory."""


def classify(
    text: str, *, python: bool = False, last_words: bytes = b"", memory_full: bool, limit_bytes: int
) -> TartletError:
    """Return the error for a trap.

    Args:
        text: wasmtime's message, with its "Caused by" lines.
        python: it is the Python guest, whose interpreter does what it does.
        last_words: what the guest wrote to standard error last.
        memory_full: whether the guest had used up its linear memory.
        limit_bytes: its memory limit.
    """
    if unknown := _UNKNOWN_IMPORT.search(text):
        return NotAllowed(what=unknown[1])
    if _OUT_OF_MEMORY.search(text):
        return ProgramMemoryExceeded(limit_bytes=limit_bytes)
    if "stack exhausted" in text:
        return ProgramTrapped(detail="the call stack overflowed")
    # CPython 3.14.0 frees the operands of a `+` of strings twice where the sum gets no memory, and calls into nothing.
    if died_of_memory(last_words) or (python and "uninitialized element" in text):
        return ProgramMemoryExceeded(limit_bytes=limit_bytes)
    # A program that can't get memory gives up by `unreachable` (abort) or by using a null pointer.
    if memory_full and ("unreachable" in text or "out of bounds memory" in text):
        return ProgramMemoryExceeded(limit_bytes=limit_bytes)
    return ProgramTrapped(detail=brief(text))


def died_of_memory(last_words: bytes) -> bool:
    """Return whether a guest that trapped had just said that it got no memory."""
    return _DIED_OF_MEMORY.search(last_words) is not None


def brief(text: str) -> str:
    """Return the root cause of a wasmtime message: its last "Caused by" line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "unknown cause"
    cause = lines[-1]
    cause = re.sub(r"^\d+: ", "", cause)
    return re.sub(r"^wasm trap: ", "", cause)[:500]


def ran_out_of_memory(traceback_text: str) -> bool:
    """Return whether a Python traceback ends in MemoryError."""
    last = traceback_text.rstrip().rsplit("\n", 1)[-1]
    return last == "MemoryError" or last.startswith("MemoryError:")
