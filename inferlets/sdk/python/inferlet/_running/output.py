"""`sys.stdout` and `sys.stderr` of a sandboxed program: text becomes LOG commands.

Text goes out with the program's next submission, which costs nothing of its own. A finished line, or a second flush
since then, is submitted at once: what a program printed before it spins or is killed must not be lost.
"""

from __future__ import annotations

import io

from inferlet._generated import abi
from inferlet._wire.channel import channel

STDOUT, STDERR = 1, 2
CHUNK_BYTES = 128 << 10


class _Bytes(io.RawIOBase):
    """`sys.stdout.buffer`."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        raw = bytes(data)  # type: ignore[call-overload]
        self._output.write_bytes(raw)
        return len(raw)

    def flush(self) -> None:
        self._output.flush()


class Output(io.TextIOBase):
    """A text stream whose other end is the client."""

    encoding = "utf-8"

    def __init__(self, stream: int) -> None:
        self._stream = stream
        self._held = bytearray()
        self._flushed = False
        self.buffer = _Bytes(self)

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, text: str) -> int:
        """Take text; complete lines leave at once."""
        self.write_bytes(text.encode(errors="surrogatepass" if text.isascii() else "replace"))
        return len(text)

    def write_bytes(self, data: bytes) -> None:
        """Take bytes; complete lines leave at once."""
        self._held += data
        if b"\n" in data:
            self._submit()

    def flush(self) -> None:
        """Let the text leave when the program next blocks; a second time before that, at once."""
        if self._flushed and self._held:
            self._submit()
        self._flushed = True

    def _submit(self) -> None:
        for stream in _open:
            stream.record()
        channel.submit()

    def record(self) -> None:
        """Turn held text into commands."""
        held, self._held = self._held, bytearray()
        self._flushed = False
        for at in range(0, len(held), CHUNK_BYTES):
            channel.record(abi.OP_LOG, 0, self._stream, payload=bytes(held[at : at + CHUNK_BYTES]))


_open: list[Output] = []


def open_streams() -> tuple[Output, Output]:
    """Standard output and standard error; the channel takes their text along whenever it submits."""
    _open[:] = [Output(STDOUT), Output(STDERR)]

    def record() -> None:
        for stream in _open:
            stream.record()

    channel.before_submit = record
    return _open[0], _open[1]
