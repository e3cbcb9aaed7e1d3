"""Metrics of the directory."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from opentelemetry.metrics import CallbackOptions, Observation

from tartlet_common.telemetry import names, telemetry
from tartlet_control.directory.follower import Follower


def observe(follower: Follower) -> None:
    """Make metrics of what keeps a directory."""
    meter, counters = telemetry.meter(), follower.counters
    counts: dict[str, Callable[[], int]] = {
        names.METRIC_DIRECTORY_WRITTEN: lambda: counters.written,
        names.METRIC_DIRECTORY_REBUILDS: lambda: counters.rebuilds,
        names.METRIC_DIRECTORY_LOSSES: lambda: counters.losses,
        names.METRIC_DIRECTORY_LEFT_OUT: lambda: counters.left_out,
        names.METRIC_DIRECTORY_RECALLED: lambda: follower.recalled,
    }
    for name, count in counts.items():
        meter.create_observable_counter(name, [_read(count)])
    meter.create_observable_gauge(names.METRIC_DIRECTORY_LAG, [_read(lambda: follower.lag_s)], unit="s")


def _read(value: Callable[[], float]) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _: [Observation(value())]
