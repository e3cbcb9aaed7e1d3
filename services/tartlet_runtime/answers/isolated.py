"""A tokenizer that works in a process of its own, so that no text of one tenant ends or holds up the runtime."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np

from tartlet_common.errors.registry import InvalidArgument, Unavailable
from tartlet_runtime.answers.tokenizer_process import (
    ANSWER,
    DECODE,
    ENCODE,
    LOAD,
    NO_TOKEN,
    REFUSED,
    REQUEST,
    TEXT,
    WORDS,
)
from tartlet_runtime.budget.ledger import Ledger, Use

LEAST_BYTES: Final = 192 << 20  # Python, numpy and the library take 60 MiB of them
MOST_BYTES: Final = 1 << 30
ONE_THREAD: Final = {"RAYON_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
_PROCESS: Final = "tartlet_runtime.answers.tokenizer_process"
_CALL_S: Final = 20.0  # of processor time
_WAIT_S: Final = 60.0  # until a call's process is killed, however little the machine lets it compute
_IDLE_S: Final = 30.0  # until a process without calls ends
_MOST_ANSWER_BYTES: Final = 64 << 20


class IsolatedTokenizer:
    """Answers as a `TokenizerEntry` does. Calls block, one at a time: they belong on this tokenizer's own thread."""

    def __init__(self, tokenizer_json: bytes, ledger: Ledger, *, call_s: float = _CALL_S) -> None:
        """Keep the file; its process starts at the first call, and takes memory from `ledger` while it lives."""
        self.threads = ThreadPoolExecutor(1, "isolated-tokenizer")
        self._json = tokenizer_json
        self._ledger = ledger
        self._call_s = call_s
        self._process: subprocess.Popen[bytes] | None = None
        self._share = 0
        self._idle: threading.Timer | None = None

    def encode(self, text: str, *, special: bool) -> bytes:
        """See `TokenizerEntry.encode`.

        Raises:
            InvalidArgument: the tokenizer fails at this text, or takes more time or memory than one call may.
            MemoryBudgetExceeded: the runtime has no memory for the process now.
        """
        return self._ask(ENCODE, int(special), 0, text.encode())

    def decode(self, ids: Sequence[int], *, special: bool) -> bytes:
        """See `TokenizerEntry.decode`; raises what `encode` raises."""
        return self._ask(DECODE, int(special), 0, np.array(ids, "<u4").tobytes())

    def words(self, first: int, count: int) -> bytes:
        """See `TokenizerEntry.words`; raises what `encode` raises."""
        return self._ask(WORDS, first, count, b"")

    def text_of(self, token: int | None) -> str:
        """See `TokenizerEntry.text_of`; raises what `encode` raises."""
        return self._ask(TEXT, NO_TOKEN if token is None else token, 0, b"").decode()

    def close(self) -> None:
        """End the process, also in the middle of a call, and take no more calls."""
        self.threads.submit(self._stop)
        self.threads.shutdown(wait=False)
        process = self._process
        if process is not None:
            process.kill()

    def _ask(self, kind: bytes, a: int, b: int, payload: bytes) -> bytes:
        if self._idle is not None:
            self._idle.cancel()
        if self._process is None:
            self._process = self._start()
            self._call(self._process, LOAD, 0, 0, self._json)
        answer = self._call(self._process, kind, a, b, payload)
        self._idle = threading.Timer(_IDLE_S, self._end_idle)
        self._idle.daemon = True
        self._idle.start()
        return answer

    def _start(self) -> subprocess.Popen[bytes]:
        self._share = self._ledger.take_share(Use.TOKENIZERS, LEAST_BYTES, MOST_BYTES)
        command = [sys.executable, "-P", "-m", _PROCESS, str(self._share), str(self._call_s)]
        pipe = subprocess.PIPE
        try:
            return subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=os.environ | ONE_THREAD
            )
        except OSError as e:
            self._give()
            raise Unavailable(what="a process for a tokenizer", detail=str(e)) from e

    def _call(self, process: subprocess.Popen[bytes], kind: bytes, a: int, b: int, payload: bytes) -> bytes:
        """Send one request and wait for its answer; a process that gives none is ended."""
        assert process.stdin is not None
        assert process.stdout is not None
        killer = threading.Timer(_WAIT_S, process.kill)
        killer.start()
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(REQUEST.pack(kind, a, b, len(payload)) + payload)
                process.stdin.flush()
            header = process.stdout.read(ANSWER.size)
            status, length = ANSWER.unpack(header) if len(header) == ANSWER.size else (None, 0)
            answer = process.stdout.read(length) if length <= _MOST_ANSWER_BYTES else b""
        finally:
            killer.cancel()
        if status is None or len(answer) != length:
            share, code = self._share, self._stop()
            bounds = f"{share >> 20} MiB, {self._call_s:g} s, an answer of {_MOST_ANSWER_BYTES >> 20} MiB"
            detail = f"the process of this tokenizer ended with status {code} (it may take {bounds})"
            raise InvalidArgument(argument="tokenizer.json", detail=detail)
        if status == REFUSED:
            argument, _, detail = answer.decode(errors="replace").partition("\n")
            raise InvalidArgument(argument=argument, detail=detail)
        return answer

    def _end_idle(self) -> None:
        with contextlib.suppress(RuntimeError):  # closed meanwhile
            self.threads.submit(self._stop_if_idle, self._idle)

    def _stop_if_idle(self, timer: threading.Timer | None) -> None:
        if timer is self._idle:  # no call has come since
            self._stop()

    def _stop(self) -> int:
        """End the process and give its memory back; return its exit status."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.kill()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()
        code = process.wait()
        self._give()
        return code

    def _give(self) -> None:
        self._ledger.give(Use.TOKENIZERS, self._share)
        self._share = 0
