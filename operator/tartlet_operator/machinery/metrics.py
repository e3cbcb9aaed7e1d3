"""The operator's own metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from opentelemetry.metrics import CallbackOptions, Observation

from tartlet_common.telemetry import names, telemetry
from tartlet_operator.machinery.store import Store

RECONCILE_DURATION: Final = "tartlet.operator.reconcile.duration"  # s
RECONCILES: Final = "tartlet.operator.reconciles"
RECONCILE_ERRORS: Final = "tartlet.operator.reconcile.errors"
STATUS_WRITES: Final = "tartlet.operator.status.writes"
VALIDATION_DURATION: Final = "tartlet.operator.validation.duration"  # s
OBJECTS: Final = "tartlet.operator.objects"
RUNS_WAITING: Final = "tartlet.operator.runs.waiting"
QUEUE: Final = "tartlet.operator.queue"
LEADING: Final = "tartlet.operator.leading"
WATCH_AGE: Final = "tartlet.operator.watch.age"  # s

_BOUNDS_S: Final = tuple(0.001 * 2**i for i in range(16))


class Metrics:
    """Counters, histograms, and gauges that ask when they are read.

    Counts are kept in dictionaries here: the exporter's own counters would take a tenth of the time that an unchanged
    object costs.
    """

    def __init__(
        self, store: Store, queue_depth: Callable[[], int], leading: Callable[[], bool], watch_age: Callable[[], float]
    ) -> None:
        meter = telemetry.meter()
        self._duration = meter.create_histogram(
            RECONCILE_DURATION,
            "s",
            "time to bring an object about",
            explicit_bucket_boundaries_advisory=_BOUNDS_S,
        )
        self._validation = meter.create_histogram(
            VALIDATION_DURATION,
            "s",
            "time a runtime took to judge a source",
            explicit_bucket_boundaries_advisory=_BOUNDS_S,
        )
        self._reconciles: Counter[str] = Counter()
        self._errors: Counter[tuple[str, str]] = Counter()
        self._writes: Counter[str] = Counter()

        def errors(_: CallbackOptions) -> Iterable[Observation]:
            for kind in self._reconciles.copy():  # without a failure too: a counter that is missing tells nothing
                yield Observation(0, {"kind": kind})
            for (kind, reason), n in self._errors.copy().items():
                yield Observation(n, {"kind": kind, "reason": reason})

        meter.create_observable_counter(RECONCILES, [_by_kind(self._reconciles)], description="objects looked at")
        meter.create_observable_counter(RECONCILE_ERRORS, [errors], description="failures by reason")
        meter.create_observable_counter(STATUS_WRITES, [_by_kind(self._writes)], description="statuses written")

        def objects(_: CallbackOptions) -> Iterable[Observation]:
            for (kind, state), n in store.inventory().items():
                yield Observation(n, {"kind": kind, "state": state})

        def waiting(_: CallbackOptions) -> Iterable[Observation]:
            for key, n in store.waiting_runs().items():
                yield Observation(n, {names.ATTR_POOL: f"{key.namespace}/{key.name}"})

        meter.create_observable_gauge(RUNS_WAITING, [waiting], description="runs that wait for a pool's engine")
        meter.create_observable_gauge(OBJECTS, [objects], description="objects by state")
        meter.create_observable_gauge(QUEUE, [lambda _: [Observation(queue_depth())]], description="objects waiting")
        meter.create_observable_gauge(LEADING, [lambda _: [Observation(int(leading()))]], description="holds the Lease")
        meter.create_observable_gauge(WATCH_AGE, [lambda _: [Observation(watch_age())]], "s", "since the last event")

    def reconciled(self, kind: str, seconds: float) -> None:
        """Count an object that was looked at, and how long that took."""
        self._reconciles[kind] += 1
        self._duration.record(seconds, {"kind": kind})

    def validated(self, seconds: float) -> None:
        """Record how long a runtime took to validate a source."""
        self._validation.record(seconds)

    def failed(self, kind: str, reason: str) -> None:
        """Count a failure to bring an object about."""
        self._errors[kind, reason] += 1

    def wrote(self, kind: str) -> None:
        """Count a status that was written."""
        self._writes[kind] += 1


def _by_kind(counts: Counter[str]) -> Callable[[CallbackOptions], Iterable[Observation]]:
    """Return a callback that gives an instrument's values. The exporter calls it from its own thread."""

    def values(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(n, {"kind": kind}) for kind, n in counts.copy().items()]

    return values
