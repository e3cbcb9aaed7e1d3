"""Gauges of the runtime's memory: its bound, and what each use has taken of the bound."""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry.metrics import CallbackOptions, Observation

from tartlet_common.telemetry import names, telemetry
from tartlet_runtime.budget.ledger import Ledger


def show_memory(ledger: Ledger) -> None:
    """Export the ledger's bytes; no-op where telemetry is off."""

    def taken(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(count, {names.ATTR_MEMORY_USE: use.value}) for use, count in ledger.taken.items()]

    def bound(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(ledger.bound_bytes)]

    meter = telemetry.meter()
    meter.create_observable_up_down_counter(names.METRIC_MEMORY_TAKEN, [taken], unit="By")
    meter.create_observable_gauge(names.METRIC_MEMORY_LIMIT, [bound], unit="By")
