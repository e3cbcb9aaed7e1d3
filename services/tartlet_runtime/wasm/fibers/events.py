"""The output and submissions of one guest, kept in order until the host hears them.

A guest writes and submits while it is polled. The hooks are called after the poll, in the same order.
"""

from __future__ import annotations

import itertools
import operator

from tartlet_common.errors.registry import ProgramFailed
from tartlet_runtime.wasm.boundary.shim import Boundary
from tartlet_runtime.wasm.boundary.state import GuestState, end_slice
from tartlet_runtime.wasm.types import STDERR, GuestHooks

_SUBMISSION = 0  # beside the streams 1 and 2
_LAST_WORDS_BYTES = 2048


class GuestEvents:
    """Output and submissions that the hooks have not heard yet.

    Core guests' submissions are kept by the boundary, because C takes them. They join the others here.

    Attributes:
        last_words: the last 2048 bytes that the guest wrote to standard error.
    """

    __slots__ = ("_boundary", "_kept", "_kept_bytes", "_state", "last_words")

    def __init__(self, boundary: Boundary, state: GuestState) -> None:
        """Start with no events of the guest that has this `state`."""
        self.last_words = b""
        self._boundary = boundary
        self._state = state
        self._kept: list[tuple[int, bytes]] = []
        self._kept_bytes = 0

    def submit(self, data: bytes) -> None:
        """Keep a component's submission.

        Raises:
            ProgramFailed: the submission is larger than the guest's limit.
        """
        limit = self._state.submit_limit
        if len(data) > limit:
            raise ProgramFailed(traceback=f"a submission of {len(data)} bytes; the limit is {limit}")
        self._keep(_SUBMISSION, data)

    def emit(self, stream: int, data: bytes) -> None:
        """Keep bytes that a component wrote to stdout or stderr."""
        if stream == STDERR:
            self.last_words = (self.last_words + data)[-_LAST_WORDS_BYTES:]
        self._keep(stream, data)

    def tell(self, hooks: GuestHooks) -> None:
        """Call the hooks for all events, in order."""
        if self._kept:
            self._tell_kept(hooks)
        for data in self._boundary.take_submissions(self._state):  # submitted after the last output
            hooks.on_submit(data)

    def drop_errors(self) -> None:
        """Drop unheard writes to standard error."""
        self._kept = [event for event in self._kept if event[0] != STDERR]

    def drop_kept(self) -> None:
        """Drop unheard events, but leave the boundary's submissions, which end with the guest's state."""
        self._kept.clear()

    def drop_all(self) -> None:
        """Drop all unheard events."""
        self._kept.clear()
        self._boundary.take_submissions(self._state)

    def _keep(self, stream: int, data: bytes) -> None:
        before = self._boundary.take_submissions(self._state)
        events = [*((_SUBMISSION, each) for each in before), (stream, data)]
        self._kept += events
        self._kept_bytes += sum(len(event[1]) for event in events)
        if self._kept_bytes > self._state.soft_limit:  # end the slice so that the hooks can take the bytes
            end_slice(self._state)

    def _tell_kept(self, hooks: GuestHooks) -> None:
        events, self._kept = self._kept, []
        self._kept_bytes = 0
        for stream, group in itertools.groupby(events, key=operator.itemgetter(0)):
            if stream == _SUBMISSION:
                for _, data in group:
                    hooks.on_submit(data)
            else:  # a print arrives in small pieces
                hooks.on_output(stream, b"".join(data for _, data in group))
