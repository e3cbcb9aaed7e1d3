"""The Python guest's way to its host: bytes over the component's `host` interface.

The SDK talks to `inferlet._wire.host.backend`; outside the sandbox that is a socket, here it is this class.
"""

from __future__ import annotations

from wit_world.imports import host


class WitBackend:
    """`submit` and `wait` over the WIT world, one code point U+0000 to U+00FF a byte (docs/abi.md)."""

    def submit(self, data: bytes) -> None:
        """Hand a batch of commands to the host."""
        host.submit(data.decode("latin-1"))

    def wait(self, max_records: int, timeout_us: int) -> bytes:
        """Suspend the program until the host delivers; the delivery's bytes."""
        return host.wait(max_records, timeout_us).encode("latin-1")
