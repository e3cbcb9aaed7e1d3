"""Trials of tokenizers that come from engines of tenants, before the runtime itself loads them.

The tokenizers library is native code: a hostile tokenizer.json can abort the process that loads the file. So a process
with bounds loads the file first. A verdict is kept beside the blob, by digest, and costs nothing from then on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Final

from tartlet_common.errors.registry import InvalidArgument, Unavailable
from tartlet_runtime.answers.blob_files import store
from tartlet_runtime.answers.isolated import LEAST_BYTES, MOST_BYTES, ONE_THREAD
from tartlet_runtime.answers.trial_process import REFUSED
from tartlet_runtime.budget.ledger import Ledger, Use

log = logging.getLogger(__name__)

_PROCESS: Final = "tartlet_runtime.answers.trial_process"
_TIMEOUT_S: Final = 20.0
_AT_ONCE: Final = 2
_ENDED: Final = f"its trial (within {{}} MiB and {_TIMEOUT_S:g} s) ended with status {{}}"
_LASTING: Final = frozenset({0, REFUSED})
_CRASHED: Final = frozenset({-signal.SIGABRT, -signal.SIGSEGV})
_RULES: Final = 1  # raise this number when the trial finds more than before


class Trials:
    """Tries tokenizers, at most two at once, and keeps the verdicts."""

    def __init__(self, directory: Path, ledger: Ledger) -> None:
        """`directory` keeps verdicts over restarts; a trial takes its memory from `ledger`."""
        self._ledger = ledger
        self._directory = directory
        self._kind = f"tried-{_RULES}-{version('tokenizers')}"
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def check(self, digest: str, tokenizer_json: bytes) -> None:
        """Return if the runtime may load a tokenizer.

        Args:
            digest: the SHA-256 of the tokenizer.json, in hex.
            tokenizer_json: the file's bytes.

        Raises:
            InvalidArgument: the tokenizer is refused; it crashed the process or passed a bound, for example.
            MemoryBudgetExceeded: the runtime has no memory for a trial now.
            Unavailable: the process can't be started.
        """
        kept = self._directory / f"{digest}.{self._kind}"
        with contextlib.suppress(OSError):
            _judge(kept.read_text())
            return
        async with self._turns:
            share = self._ledger.take_share(Use.TOKENIZERS, LEAST_BYTES, MOST_BYTES)
            try:
                code, said = await _outcome(tokenizer_json, share)
            finally:
                self._ledger.give(Use.TOKENIZERS, share)
        verdict = said if code == REFUSED else _ENDED.format(share >> 20, code) if code else ""
        if code in _LASTING or (code in _CRASHED and share == MOST_BYTES):
            # for other ends, a busy machine or a small share may be at fault: the next call tries again
            await asyncio.to_thread(store, kept, verdict.encode())
        _judge(verdict)


def _judge(verdict: str) -> None:
    if verdict:
        raise InvalidArgument(argument="tokenizer.json", detail=verdict)


async def _outcome(tokenizer_json: bytes, memory_bytes: int) -> tuple[int, str]:
    """Return the exit status of a trial, and the last line that the process wrote to stderr."""
    command = [sys.executable, "-P", "-m", _PROCESS, str(memory_bytes), f"{_TIMEOUT_S:.0f}"]
    pipe = asyncio.subprocess.PIPE
    try:
        child = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=asyncio.subprocess.DEVNULL, stderr=pipe, env=os.environ | ONE_THREAD
        )
    except OSError as e:
        raise Unavailable(what="a process that tries tokenizers", detail=str(e)) from e
    said = b""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            _, said = await child.communicate(tokenizer_json)
    except TimeoutError:
        log.warning("a tokenizer's trial took more than %g s", _TIMEOUT_S)
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
        code = await child.wait()
    return code, said.decode(errors="replace").rpartition("\n")[2]
