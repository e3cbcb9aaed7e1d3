"""Begins the next step while the device computes the one before it, so that the device needn't wait for the host.

While a step's tokens are sampled, the engine asks for the step behind it. If that one is a decode step (`plan_ahead`),
it is launched at once: its rows take their tokens on the device. Then the first step's tokens are read, and its result
leaves. The handlers run the second step's batches afterwards, with all that they need to know, while the device
computes; they find the tokens already sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from tartlet_common.engine.step import EmbedTxt, Kind, Step
from tartlet_worker.csr import Ints
from tartlet_worker.engine import Following
from tartlet_worker.graphs.ahead import plan_ahead
from tartlet_worker.graphs.decoder import GraphDecoder, Launched
from tartlet_worker.handlers.output import rows_at_once
from tartlet_worker.handlers.registration import Resources


class NextStep:
    """The step behind the one that runs."""

    def __init__(self, decoder: GraphDecoder, on: Resources, begin: Callable[[Step], None]) -> None:
        """Take the parts of an engine; `begin` does what a step does before its batches."""
        self._decoder, self._on, self._begin = decoder, on, begin
        self._step: Step | None = None  # begun
        self._launched: Launched | None = None  # of that step
        self._error: Exception | None = None
        self._running: Launched | None = None  # of the step that runs

    def forget(self) -> None:
        """Forget a step that was begun."""
        if self._launched is not None:
            self._decoder.landed(self._launched)
        self._step = self._launched = self._error = self._running = None

    def take(self, step: Step) -> bool:
        """Make a step the one that runs; return whether it was begun already.

        Raises:
            Exception: what went wrong when the step was begun.
        """
        begun, self._step = self._step, None
        self._running, self._launched = self._launched, None
        if begun is None:
            return False
        assert begun is step, "the step that was returned as the next one must come next"
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        self._decoder.computing()
        return True

    @contextmanager
    def looked_for(self, step: Step, at: int, following: Following) -> Iterator[None]:
        """Look for the next step while a batch of the one that runs is handled."""
        batch, rest = step.batches[at], step.batches[at + 1 :]
        tail = rest[0] if rest and isinstance(rest[0], EmbedTxt) else None
        if batch.kind != Kind.SAMPLE:
            yield
            return
        if len(rest) == (tail is not None) and len(batch.lane) <= rows_at_once(self._on.spec.vocab_size):

            def look(slots: Ints, read: Callable[[], bool]) -> None:
                self._decoder.waiting = None
                if len(np.unique(slots)) < len(slots):
                    return  # which of a slot's tokens the device keeps isn't certain
                found = following(read)
                if found is not None:
                    self._start(found, tail, slots)

            self._decoder.waiting = look
        try:
            yield
        finally:
            self._decoder.waiting = None
        if self._running is not None:
            self._decoder.landed(self._running)
            self._running = None

    def _start(self, step: Step, tail: EmbedTxt | None, slots: Ints) -> None:
        """Begin a step while the one that runs samples tokens into slots [N], and launch it if that can be."""
        lanes = self._on.poisoned
        if len(step.clear_embeds) or len(step.clear_slots) or len(step.swaps.out_page) or len(step.swaps.in_page):
            return  # the one that runs may still write what is cleared
        if tail is not None and np.isin(tail.lane, [*lanes, *step.reset_lanes.tolist()]).any():
            return  # the tail is refused, or may break a lane that the step then mends
        unknown = np.zeros(self._on.pools.sizes.num_slots, np.bool_)
        unknown[slots] = True
        self._step = step
        try:
            self._begin(step)
            ahead = plan_ahead(step.batches, tail, unknown, self._on)
            if ahead is not None:
                self._launched = self._decoder.launch(ahead)
        except Exception as error:  # noqa: BLE001 - it is the next step's, so the call that runs that step raises it
            self._error = error
