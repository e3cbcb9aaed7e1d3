"""What the role asks of whatever runs a program's code, and what it answers: a Wasm fiber or a native process.

A guest drives its `Host` (the program's state machine) in its own order: `on_submit`, `on_output`, `on_wait`. A wait
that can't be answered at once returns None, and the guest stands still until the driver calls `deliver` and `step`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tartlet_common.errors.registry import TartletError
from tartlet_runtime.wasm.types import FOREVER_US, STDERR, STDOUT, Delivery, Phase

__all__ = ["FOREVER_US", "STDERR", "STDOUT", "Delivery", "Guest", "GuestOutcome", "Host", "Phase"]


MAX_TRACEBACK_CHARS = 64 << 10


@dataclass(frozen=True, slots=True)
class GuestOutcome:
    """How a guest ended: `error` None and its result, or the typed error."""

    text: str = ""
    error: TartletError | None = None


class Guest(Protocol):
    """A program's code, started and suspended at `Host.on_wait` or before its first instruction."""

    @property
    def outcome(self) -> GuestOutcome | None:
        """How it ended, once `step` said ENDED."""

    @property
    def sleep_us(self) -> int:
        """How long the sleep takes that `step` answered SLEEPING for."""

    def step(self) -> Phase:
        """Let it compute for at most a slice."""

    def deliver(self, delivery: Delivery) -> None:
        """Answer the open wait; takes effect at the next step."""

    def wake(self) -> None:
        """End the open sleep; takes effect at the next step."""

    def pause(self, *, paused: bool) -> None:
        """Output goes unread, or is read again: a guest that isn't driven by `step` stops reading its commands."""

    def close(self, error: TartletError | None) -> None:
        """Tear it down, whatever it does; `error` says why to a guest that can still be told."""


class Host(Protocol):
    """The program behind a guest. An exception from `on_*` ends the program with it."""

    def on_submit(self, data: bytes) -> None:
        """Take a submission (abi)."""

    def on_output(self, stream: int, data: bytes) -> None:
        """Take bytes written to stdout (1) or stderr (2)."""

    def on_wait(self, max_records: int, timeout_us: int) -> Delivery | None:
        """Answer a wait at once, or None: later, through `Guest.deliver`."""

    def on_sleep(self, duration_us: int) -> bool:
        """Return whether a sleep is over at once (in a replay)."""


def clip_traceback(text: str) -> str:
    """Return the end of a traceback, which names the cause; endless ones are cut."""
    if len(text) <= MAX_TRACEBACK_CHARS:
        return text
    return f"... {len(text) - MAX_TRACEBACK_CHARS} characters left out\n{text[-MAX_TRACEBACK_CHARS:]}"
