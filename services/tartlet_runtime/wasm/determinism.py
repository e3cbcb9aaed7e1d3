"""What a guest knows of time and chance: pure, explicit state, so that a journal can replay it.

Clock: time of the last delivery, plus 1 us per reading. Randomness: a keyed counter stream (BLAKE2b in counter mode).
Neither costs a journal entry. The stream is not for secrets: its seed stands in the journal.
"""

from __future__ import annotations

import os
import time
from hashlib import blake2b
from typing import Protocol

NS_PER_READING = 1_000
SEED_BYTES = 16
MAX_RANDOM_BYTES = 1 << 20
"""Most random bytes a guest gets at once: no slice can end while the host makes them (16 ms)."""
_BLOCK_BYTES = 64


class Clock(Protocol):
    """The clock of one guest."""

    start_ns: int

    def now_ns(self) -> int:
        """Read the clock: nanoseconds since the epoch."""

    def peek_ns(self) -> int:
        """Return the time, without a reading."""

    def advance_to(self, time_ns: int) -> None:
        """Move on to a time, never back."""


class Random(Protocol):
    """The randomness of one guest."""

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes."""


class GuestClock:
    """Deterministic: moves only by deliveries, sleeps and its own readings.

    Example:
        >>> clock = GuestClock(start_ns=5_000)
        >>> clock.now_ns(), clock.now_ns()
        (6000, 7000)
        >>> clock.advance_to(1_000_000)
        >>> clock.now_ns()
        1001000
    """

    __slots__ = ("_base_ns", "_readings", "start_ns")

    def __init__(self, start_ns: int) -> None:
        """Start at `start_ns` (nanoseconds since the epoch)."""
        self.start_ns = start_ns
        self._base_ns = start_ns
        self._readings = 0

    def now_ns(self) -> int:
        """Read the clock; each reading moves it by 1 us."""
        self._readings += 1
        return self._base_ns + self._readings * NS_PER_READING

    def peek_ns(self) -> int:
        """Return the time without a reading (for the host: it doesn't move the clock)."""
        return self._base_ns + self._readings * NS_PER_READING

    def advance_to(self, time_ns: int) -> None:
        """Move on to `time_ns`; a time in the past changes nothing but the count of readings."""
        self._base_ns = max(self.peek_ns(), time_ns)
        self._readings = 0


class GuestRandom:
    """Deterministic byte stream: block i is BLAKE2b(i, key=seed).

    Example:
        >>> a, b = GuestRandom(b"seed"), GuestRandom(b"seed")
        >>> a.take(3) + a.take(100) == b.take(103)
        True
    """

    __slots__ = ("_buffer", "_counter", "seed")

    def __init__(self, seed: bytes) -> None:
        """Start the stream of `seed` (1 to 64 bytes)."""
        self.seed = seed
        self._counter = 0
        self._buffer = b""

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        if len(self._buffer) < size:
            parts = [self._buffer]
            have = len(self._buffer)
            while have < size:
                parts.append(blake2b(self._counter.to_bytes(8, "little"), key=self.seed).digest())
                self._counter += 1
                have += _BLOCK_BYTES
            self._buffer = b"".join(parts)
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken


class SystemClock:
    """The machine's clock, for programs launched with `durable=False`."""

    __slots__ = ("start_ns",)

    def __init__(self) -> None:
        """Start now."""
        self.start_ns = time.time_ns()

    def now_ns(self) -> int:
        """Read the machine's clock."""
        return time.time_ns()

    def peek_ns(self) -> int:
        """Return the same as `now_ns`."""
        return time.time_ns()

    def advance_to(self, time_ns: int) -> None:
        """Do nothing: real time passes by itself."""


class SystemRandom:
    """The machine's entropy, for programs launched with `durable=False`."""

    __slots__ = ()

    def take(self, size: int) -> bytes:
        """`size` bytes of entropy."""
        return os.urandom(size)
