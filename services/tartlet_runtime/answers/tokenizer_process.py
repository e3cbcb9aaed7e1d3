"""Serve one tokenizer over stdin and stdout, as a process whose memory and time are bounded.

The command is `python -m tartlet_runtime.answers.tokenizer_process MEMORY_BYTES SECONDS`. The first request is the
tokenizer.json. A request is its kind (one byte), two numbers and the length of its payload (u32 each), and the payload;
an answer is a status byte, a length (u32) and that many bytes. `SECONDS` of processor time in one request end the
process, also when its parent has died.
"""

from __future__ import annotations

import resource
import signal
import struct
import sys
from typing import BinaryIO

import numpy as np

from tartlet_common.errors.registry import InvalidArgument
from tartlet_runtime.answers.tokens import TokenizerEntry

REQUEST = struct.Struct("<cIII")
ANSWER = struct.Struct("<BI")
LOAD, ENCODE, DECODE, WORDS, TEXT = b"l", b"e", b"d", b"w", b"t"
DONE, REFUSED = 0, 1
NO_TOKEN = 0xFFFFFFFF


def limit(memory_bytes: int) -> None:
    """Bound this process's memory; it leaves no core dump."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))


def main(memory_bytes: str, seconds: str) -> int:
    """Answer requests until stdin ends; return the exit status."""
    limit(int(memory_bytes))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the kernel ends the process; no Python code is needed
    entry: TokenizerEntry | None = None
    while header := sys.stdin.buffer.read(REQUEST.size):
        kind, a, b, length = REQUEST.unpack(header)
        payload = sys.stdin.buffer.read(length)
        signal.setitimer(signal.ITIMER_PROF, float(seconds))
        try:
            if kind == LOAD:
                entry, answer = TokenizerEntry(payload), b""
            else:
                assert entry is not None
                answer = _answer(entry, kind, a, b, payload)
        except InvalidArgument as e:
            _write(sys.stdout.buffer, REFUSED, f"{e.fields['argument']}\n{e.fields['detail']}".encode())
        else:
            _write(sys.stdout.buffer, DONE, answer)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
    return 0


def _answer(entry: TokenizerEntry, kind: bytes, a: int, b: int, payload: bytes) -> bytes:
    if kind == ENCODE:
        return entry.encode(payload.decode(), special=bool(a))
    if kind == DECODE:
        return entry.decode(np.frombuffer(payload, "<u4").tolist(), special=bool(a))
    if kind == WORDS:
        return entry.words(a, b)
    return entry.text_of(None if a == NO_TOKEN else a).encode()


def _write(out: BinaryIO, status: int, data: bytes) -> None:
    out.write(ANSWER.pack(status, len(data)) + data)
    out.flush()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
