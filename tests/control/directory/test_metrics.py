"""What metrics tell of the directory."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from tartlet_common.telemetry import names, telemetry
from tartlet_control.directory.memory_store import Shelf
from tartlet_control.directory.metrics import observe
from tests.control.directory.test_follower import BIG, following, follows, until, use
from tests.control.harness import Host


async def test_metrics_tell_what_was_written_and_how_late_the_store_is(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader])
    monkeypatch.setattr(telemetry, "meter", lambda: meters.get_meter("test"))
    host, shelf = Host(BIG), Shelf()
    use(host, "docs")
    async with following(host, shelf) as follower:
        observe(follower)
        await until(lambda: follows(host, shelf))
        shelf.generations.clear()
        await until(lambda: follower.counters.rebuilds > 1)
        data = reader.get_metrics_data()
        assert data is not None
        every = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics]
        told = {metric.name: metric.data.data_points[0].value for metric in every}  # type: ignore[union-attr]
    assert told[names.METRIC_DIRECTORY_WRITTEN] >= 2 * (1 + 1 + 3)
    assert told[names.METRIC_DIRECTORY_REBUILDS] >= 2
    assert told[names.METRIC_DIRECTORY_LOSSES] >= 1
    assert told[names.METRIC_DIRECTORY_LEFT_OUT] == told[names.METRIC_DIRECTORY_RECALLED] == 0
    assert 0 <= told[names.METRIC_DIRECTORY_LAG] < 5
    meters.shutdown()
