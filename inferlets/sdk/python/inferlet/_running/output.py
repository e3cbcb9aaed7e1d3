"""`sys.stdout` and `sys.stderr` of a sandboxed program: text becomes LOG commands.

Text leaves with the program's next submission, so it costs no submission of its own. A finished line is submitted at
once, and so is a second flush before the next submission: text must not be lost if the program then loops or is killed.
"""

from __future__ import annotations

import io

from inferlet._generated import packers
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
    """A text stream to the client."""

    encoding = "utf-8"

    def __init__(self, stream: int) -> None:
        self._stream = stream
        self._held = bytearray()
        self._flushed = False
        self.buffer = _Bytes(self)

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str) -> int:
        """Write text; complete lines leave at once."""
        self.write_bytes(text.encode(errors="surrogatepass" if text.isascii() else "replace"))
        return len(text)

    def write_bytes(self, data: bytes) -> None:
        """Write bytes; complete lines leave at once."""
        self._held += data
        if b"\n" in data:
            self._submit()

    def flush(self) -> None:
        """Send the text when the program next blocks, or at once if this is the second flush before that."""
        if self._flushed and self._held:
            self._submit()
        self._flushed = True

    def _submit(self) -> None:
        for stream in _open:
            stream.record()
        channel.submit()

    def record(self) -> None:
        """Turn held text into commands."""
        self._flushed = False
        if not self._held:
            return
        held, self._held = self._held, bytearray()
        for at in range(0, len(held), CHUNK_BYTES):
            channel.record(*packers.log(self._stream, bytes(held[at : at + CHUNK_BYTES])))


_open: list[Output] = []


def open_streams() -> tuple[Output, Output]:
    """Make standard output and standard error. The channel adds their text to each submission."""
    _open[:] = [Output(STDOUT), Output(STDERR)]

    def record() -> None:
        for stream in _open:
            stream.record()

    channel.before_submit = record
    return _open[0], _open[1]
