"""The seam between the SDK and whatever hosts it: bytes out, bytes in.

In the sandbox the host is the component's WIT world, outside it the runtime's socket (`_native`), in tests a small host
in the same process. Everything else of the SDK is the same in all three.
"""

from __future__ import annotations

from typing import Protocol

NO_TIMEOUT_US = 2**64 - 1


class Backend(Protocol):
    """What a host offers a program."""

    def submit(self, data: bytes) -> None:
        """Hand over a submission; never blocks."""

    def wait(self, max_records: int, timeout_us: int) -> bytes:
        """Suspend until there is a delivery of at most `max_records`, or until the time has passed."""


class NoBackend:
    """Stands in until a host has introduced itself."""

    def submit(self, data: bytes) -> None:
        """Refuse: there is nobody to talk to."""
        raise RuntimeError("not running inside Tartlet: use `tartlet run FILE`, or `tartlet run --native FILE`")

    def wait(self, max_records: int, timeout_us: int) -> bytes:
        """Refuse, as `submit`."""
        self.submit(b"")
        return b""


backend: Backend = NoBackend()
"""Set once by the host's glue before a program runs."""
