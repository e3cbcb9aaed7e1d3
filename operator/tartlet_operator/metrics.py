"""The operator's own metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from opentelemetry.metrics import CallbackOptions, Observation

from tartlet_common import telemetry
from tartlet_operator.store import Store

RECONCILE_DURATION: Final = "tartlet.operator.reconcile.duration"  # s
RECONCILES: Final = "tartlet.operator.reconciles"
RECONCILE_ERRORS: Final = "tartlet.operator.reconcile.errors"
STATUS_WRITES: Final = "tartlet.operator.status.writes"
VALIDATION_DURATION: Final = "tartlet.operator.validation.duration"  # s
OBJECTS: Final = "tartlet.operator.objects"
QUEUE: Final = "tartlet.operator.queue"
LEADING: Final = "tartlet.operator.leading"
WATCH_AGE: Final = "tartlet.operator.watch.age"  # s


class Metrics:
    """Counters and histograms, and gauges that ask when they are read."""

    def __init__(
        self, store: Store, queue_depth: Callable[[], int], leading: Callable[[], bool], watch_age: Callable[[], float]
    ) -> None:
        meter = telemetry.meter()
        self._duration = meter.create_histogram(RECONCILE_DURATION, "s", "time to bring an object about")
        self._validation = meter.create_histogram(VALIDATION_DURATION, "s", "time a runtime took to judge a source")
        self._reconciles = meter.create_counter(RECONCILES, description="objects looked at")
        self._errors = meter.create_counter(RECONCILE_ERRORS, description="failures by reason")
        self._writes = meter.create_counter(STATUS_WRITES, description="statuses written")

        def objects(_: CallbackOptions) -> Iterable[Observation]:
            for (kind, state), n in store.inventory().items():
                yield Observation(n, {"kind": kind, "state": state})

        meter.create_observable_gauge(OBJECTS, [objects], description="objects by state")
        meter.create_observable_gauge(QUEUE, [lambda _: [Observation(queue_depth())]], description="objects waiting")
        meter.create_observable_gauge(LEADING, [lambda _: [Observation(int(leading()))]], description="holds the Lease")
        meter.create_observable_gauge(WATCH_AGE, [lambda _: [Observation(watch_age())]], "s", "since the last event")

    def reconciled(self, kind: str, seconds: float) -> None:
        """An object was looked at."""
        self._reconciles.add(1, {"kind": kind})
        self._duration.record(seconds, {"kind": kind})

    def validated(self, seconds: float) -> None:
        """A runtime has judged a source."""
        self._validation.record(seconds)

    def failed(self, kind: str, reason: str) -> None:
        """An object couldn't be brought about."""
        self._errors.add(1, {"kind": kind, "reason": reason})

    def wrote(self, kind: str) -> None:
        """A status was written."""
        self._writes.add(1, {"kind": kind})
