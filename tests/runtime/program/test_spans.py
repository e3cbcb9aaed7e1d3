"""What a program's end leaves in the runtime's metrics."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from tartlet_common.errors.registry import ProgramFailed
from tartlet_common.telemetry import names, telemetry
from tartlet_protos import programs_pb2
from tartlet_runtime.program.spans import Spans


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> InMemoryMetricReader:
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader])
    monkeypatch.setattr(telemetry, "meter", lambda: meters.get_meter("test"))
    monkeypatch.setattr(telemetry, "later", lambda call, *args: call(*args))
    return reader


def points(reader: InMemoryMetricReader, name: str) -> list[Any]:
    data = reader.get_metrics_data()
    assert data is not None
    every = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics]
    return [point for m in every if m.name == name for point in m.data.data_points]


def test_a_program_s_times_and_tokens_are_told_apart_by_their_buckets(reader: InMemoryMetricReader) -> None:
    spans = Spans(scraped=True)
    spans.start("id", "name", "demo", {})
    usage = programs_pb2.Usage(input_tokens=9, sampled_tokens=40, first_token_s=0.03, per_token_s=0.004, wall_s=0.3)
    spans.end(None, "demo", usage, None)
    for name, value in (
        (names.METRIC_AGENT_DURATION, 0.3),
        (names.METRIC_TIME_TO_FIRST_TOKEN, 0.03),
        (names.METRIC_TIME_PER_OUTPUT_TOKEN, 0.004),
    ):
        (point,) = points(reader, name)
        bounds, at = point.explicit_bounds, point.bucket_counts.index(1)
        assert bounds[at - 1] < value <= bounds[at] <= 3 * value
        assert point.attributes == {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": "tartlet",
            "gen_ai.request.model": "demo",
        }
    tokens = {p.attributes[names.ATTR_TOKEN_TYPE]: p.sum for p in points(reader, names.METRIC_TOKEN_USAGE)}
    assert tokens == {"input": 9, "output": 40}


def test_a_program_that_fails_is_counted_by_its_error_and_has_no_tokens(reader: InMemoryMetricReader) -> None:
    spans = Spans(scraped=True)
    spans.start("id", "name", "", {})
    spans.end(None, "", programs_pb2.Usage(wall_s=0.3), ProgramFailed(traceback="x"))
    (ended,) = points(reader, names.METRIC_PROGRAMS_ENDED)
    assert ended.attributes["error.type"] == "ProgramFailed"
    assert points(reader, names.METRIC_TOKEN_USAGE) == []
    assert points(reader, names.METRIC_TIME_TO_FIRST_TOKEN) == []
