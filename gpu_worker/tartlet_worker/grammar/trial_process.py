"""Compiles grammars in a process of its own: `python -m tartlet_worker.grammar.trial_process VOCAB STOP,STOP...`.

A hostile grammar may take time or memory without end, or crash the library. Stdin brings the tokenizer.json, then one
message for each grammar; stdout answers each. Limits of the system end this process, and the worker starts another.
"""

from __future__ import annotations

import math
import resource
import struct
import sys
from typing import IO, Final

from tartlet_common.errors.registry import GrammarRefused
from tartlet_worker.grammar.compiling import compiled, source_of, tokenizer_of

CPU_S: Final = 2
"""Seconds of processor time, rounded up to whole seconds of the process, that one grammar may take."""
_MEMORY_BYTES: Final = 1 << 30
HEAD: Final = struct.Struct("<II")
"""The kind of a grammar, or the verdict on it (0: fine), then the bytes of the text that follows."""
REFUSED: Final = 1


def write(pipe: IO[bytes], number: int, text: bytes) -> None:
    """Write a message."""
    pipe.write(HEAD.pack(number, len(text)) + text)
    pipe.flush()


def main(vocab_size: str, stop_tokens: str) -> int:
    """Answer until stdin ends; return the exit status."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    asked, told = sys.stdin.buffer, sys.stdout.buffer
    _, size = HEAD.unpack(asked.read(HEAD.size))
    tokenizer = tokenizer_of(asked.read(size), int(vocab_size), tuple(map(int, stop_tokens.split(","))))
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    while head := asked.read(HEAD.size):
        kind, size = HEAD.unpack(head)
        text = asked.read(size)
        used = resource.getrusage(resource.RUSAGE_SELF)
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(used.ru_utime + used.ru_stime) + CPU_S, most))
        try:
            source = source_of(kind, text.decode())
            compiled(tokenizer, source)
            write(told, 0, source.encode())
        except UnicodeDecodeError:
            write(told, REFUSED, b"it is no UTF-8")
        except GrammarRefused as e:
            write(told, REFUSED, str(e.fields["detail"]).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
