"""The names of spans, attributes and metrics: none is there for nothing, and none is missing in the documents."""

from __future__ import annotations

from pathlib import Path

from tartlet_common.telemetry import names


def test_every_name_is_recorded_somewhere_and_every_span_and_metric_is_documented(repo: Path) -> None:
    folders = ("services", "gpu_worker", "operator")
    code = "".join(p.read_text() for folder in folders for p in (repo / folder).rglob("*.py"))
    documents = (repo / "docs/operations.md").read_text()
    named = {name: value for name, value in vars(names).items() if name.partition("_")[0] in ("SPAN", "ATTR", "METRIC")}
    assert len(named) > 20
    for name, value in named.items():
        assert f"names.{name}" in code, name
        if not name.startswith("ATTR_"):
            assert f"`{value}`" in documents, value


def test_bounds_of_histograms_rise() -> None:
    for name, bounds in names.BUCKETS.items():
        assert list(bounds) == sorted(set(bounds)), name
