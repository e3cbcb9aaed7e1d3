"""Tries grammars in a process that can be killed, before the worker itself compiles them."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from typing import IO, Final

from tartlet_common.errors.registry import GrammarRefused
from tartlet_worker.grammar.trial_process import CPU_S, HEAD, write

_PROCESS: Final = "tartlet_worker.grammar.trial_process"
_WALL_S: Final = 30.0
"""A process that takes no processor time either is given up after this time."""
_ENDED: Final = f"compiling it took more than {CPU_S} s or 1 GiB, or crashed"


class Trial:
    """A process that compiles grammars, one after the other. It is started when needed. One thread uses it."""

    def __init__(self, tokenizer_json: bytes, vocab_size: int, stop_tokens: tuple[int, ...]) -> None:
        self._tokenizer_json = tokenizer_json
        self._command = [sys.executable, "-P", "-m", _PROCESS, str(vocab_size), ",".join(map(str, stop_tokens))]
        self._child: subprocess.Popen[bytes] | None = None

    def source(self, kind: int, text: bytes) -> str:
        """Return a grammar in llguidance's form, which the worker can compile.

        Raises:
            GrammarRefused: the text is no such grammar, or compiling it passes the limits.
        """
        try:
            child = self._child or self._start()
            assert child.stdin is not None
            assert child.stdout is not None
            write(child.stdin, kind, text)
            end_s = time.monotonic() + _WALL_S
            verdict, size = HEAD.unpack(_exactly(child.stdout, HEAD.size, end_s))
            answer = _exactly(child.stdout, size, end_s).decode()
        except OSError as e:
            self.close()
            raise GrammarRefused(detail=_ENDED) from e
        if verdict:
            raise GrammarRefused(detail=answer)
        return answer

    def _start(self) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        env = os.environ | {"RAYON_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        child = self._child = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, env=env)
        assert child.stdin is not None
        write(child.stdin, 0, self._tokenizer_json)
        return child

    def close(self) -> None:
        """End the process."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    try:
                        pipe.close()
                    except OSError:  # what was not flushed can't be
                        continue


def _exactly(pipe: IO[bytes], size: int, end_s: float) -> bytes:
    """Read `size` bytes.

    Raises:
        OSError: the other end is gone, or the time is over.
    """
    data = b""
    while len(data) < size:
        ready, _, _ = select.select([pipe], [], [], max(0.0, end_s - time.monotonic()))
        part = os.read(pipe.fileno(), size - len(data)) if ready else b""
        if not part:
            raise BrokenPipeError
        data += part
    return data
