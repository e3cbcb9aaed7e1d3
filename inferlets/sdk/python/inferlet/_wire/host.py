"""The interface between the SDK and its host: bytes out, bytes in.

In the sandbox the host is the component's WIT world, outside of it the runtime's socket (`inferlet._running.native`),
and in tests a small host in the same process. The rest of the SDK is the same for all three.
"""

from __future__ import annotations

from typing import Protocol

NO_TIMEOUT_US = 2**64 - 1


class Backend(Protocol):
    """What a host offers a program."""

    def submit(self, data: bytes) -> None:
        """Hand over a submission; never blocks."""

    def wait(self, max_records: int, timeout_us: int) -> bytes:
        """Suspend until a delivery of at most `max_records` comes, or until the time is over; return the delivery."""


class NoBackend:
    """The backend until a host sets its own. Every call raises `RuntimeError`."""

    def submit(self, data: bytes) -> None:
        """Raise, because no host runs this program."""
        raise RuntimeError("not running inside Tartlet: use `tartlet run FILE`, or `tartlet run --native FILE`")

    def wait(self, max_records: int, timeout_us: int) -> bytes:
        """Raise, as `submit` does."""
        self.submit(b"")
        return b""


backend: Backend = NoBackend()
"""The host sets this once, before a program runs."""
