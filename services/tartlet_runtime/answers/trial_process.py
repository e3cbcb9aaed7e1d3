"""Try one tokenizer in a process of its own: load the tokenizer.json on stdin, encode and decode samples.

The command is `python -m tartlet_runtime.answers.trial_process MEMORY_BYTES SECONDS`.

A hostile tokenizer.json may make the library panic, abort the process, or take memory and time without end; the caller
gives the limits. Exit status `REFUSED` and one line on stderr: the tokenizer is not valid.
"""

from __future__ import annotations

import resource
import sys

import numpy as np

from tartlet_common.errors.registry import InvalidArgument
from tartlet_runtime.answers.tokenizer_process import limit
from tartlet_runtime.answers.tokens import TokenizerEntry

REFUSED = 3
"""Exit status for a tokenizer.json that the library or the entry refuses."""
_SAMPLES = (
    "",
    " ",
    "Hello, world! 0123456789\n\n\tdef f(x): return x ** 2  # \u00e9\u00df\u4f60\u597d\U0001f600\u0301\u00a0\ufffd\r\n",
    "".join(map(chr, range(0x250))),
    "a" * 1000 + " " * 1000 + "ab \u00e9" * 300,
)
_DECODED_AT_ONCE = 4096


def main(memory_bytes: str, seconds: str) -> int:
    """Try the tokenizer within a bound of memory and a bound of processor time; return the exit status."""
    limit(int(memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds)))
    try:
        _try(TokenizerEntry(sys.stdin.buffer.read()))
    except InvalidArgument as e:
        sys.stderr.write("\n" + " ".join(str(e.fields["detail"]).split())[:500])
        return REFUSED
    return 0


def _try(entry: TokenizerEntry) -> None:
    for special in (False, True):
        for text in _SAMPLES:
            ids = np.frombuffer(entry.encode(text, special=special), "<u4").tolist()
            entry.decode([token for token in ids if token < entry.size], special=special)
        for first in range(0, entry.size, _DECODED_AT_ONCE):
            entry.decode(range(first, min(first + _DECODED_AT_ONCE, entry.size)), special=special)
    for token in range(entry.size):
        entry.text_of(token)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
