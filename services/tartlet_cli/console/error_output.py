"""Writes a server's standard error without ever blocking the server, even if the reader stops (Ctrl-S, a full pipe)."""

from __future__ import annotations

import os
import threading
import time
from collections import deque

_LIMIT_BYTES = 1 << 20
_FULL_WAIT_S = 0.05  # pause while a non-blocking standard error is full


class ErrorOutput:
    """Text that a thread writes; beyond a limit it is left out, and that is said where it is missing.

    Args:
        descriptor: written to.
        hint: said with how many lines were left out, such as where else they are.
        limit_bytes: may wait to be written.
    """

    def __init__(self, descriptor: int, hint: str, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._descriptor = descriptor
        self._hint = hint
        self._limit_bytes = limit_bytes
        self._waiting: deque[bytes] = deque()
        self._size = 0  # bytes that wait or are being written
        self._left_out = 0
        self._closed = False
        self._changed = threading.Condition()
        # A daemon thread without a Python stream, so that the process's end never waits for a reader that stopped.
        self._thread = threading.Thread(target=self._run, name="standard error", daemon=True)
        self._thread.start()

    def write(self, text: str | bytes) -> None:
        """Queue text to be written; never blocks."""
        data = text.encode(errors="replace") if isinstance(text, str) else text
        with self._changed:
            if self._closed:
                return
            if self._left_out or self._size + len(data) > self._limit_bytes:  # until the waiting text has been read
                self._left_out += data.count(b"\n")
                return
            self._waiting.append(data)
            self._size += len(data)
            self._changed.notify()

    def close(self, wait_s: float) -> None:
        """Take no more text; wait briefly until the waiting text is written."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(wait_s)

    def _run(self) -> None:
        try:
            while data := self._next():
                self._write(data)
                with self._changed:
                    self._size -= len(data)
        except OSError:  # the reader is gone for good
            with self._changed:
                self._closed = True
                self._waiting.clear()

    def _next(self) -> bytes:
        """Return the text to write next; b"" at the end."""
        with self._changed:
            while not (self._waiting or self._left_out or self._closed):
                self._changed.wait()
            if self._waiting:
                return self._waiting.popleft()
            if not self._left_out:
                return b""
            lines, self._left_out = self._left_out, 0
            note = f"[{lines} lines left out here, because standard error was not read; {self._hint}]\n".encode()
            self._size += len(note)
            return note

    def _write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:
                time.sleep(_FULL_WAIT_S)
