"""Dashboards, panels and queries, and their form in Grafana's JSON (schema 39: Grafana 11 and later)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

WIDTH: Final = 24
"""Columns of Grafana's grid."""
HEIGHT: Final = 8
"""Rows of the grid that a panel takes."""
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_SCHEMA: Final = 39


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel.

    Attributes:
        expr: PromQL. `$where` stands for the matchers that each dashboard shares.
        legend: how a series is named, such as `{{pod}}`.
    """

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph over time, or with `stat` the last value alone.

    Attributes:
        title: what is shown.
        about: how to read it, for somebody who doesn't know the metric.
        unit: Grafana's name of the unit: `s`, `bytes`, `percentunit`, `short`, `reqps`, `dateTimeFromNow`.
        queries: what is drawn.
        stat: show the last value as a number.
        stacked: draw the series on top of each other.
    """

    title: str
    about: str
    unit: str
    queries: tuple[Query, ...]
    stat: bool = False
    stacked: bool = False


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard. `uid` never changes: links and bookmarks name it."""

    uid: str
    title: str
    panels: tuple[Panel, ...]


WHERE: Final = 'namespace=~"$namespace"'
"""The matchers that `$where` stands for."""


def expression(query: Query) -> str:
    """Return a query's PromQL, with Grafana's variables still in it."""
    return query.expr.replace("$where", WHERE)


def quantile(share: float, metric: str, by: str = "", more: str = "") -> str:
    """Return PromQL for a quantile of a histogram, by a label; `more`: further matchers, each with a leading comma."""
    grouped = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({grouped}) (rate({metric}_bucket{{$where{more}}}[$__rate_interval])))"


def rate(metric: str, by: str, more: str = "") -> str:
    """Return PromQL for the rate a second of a counter, by a label; `more`: further matchers, with a leading comma."""
    return f"sum by ({by}) (rate({metric}{{$where{more}}}[$__rate_interval]))"


def to_json(board: Board) -> dict[str, Any]:
    """Return a dashboard as Grafana imports it. Panels stand two in a line, numbers four in a line."""
    panels: list[dict[str, Any]] = []
    x = y = tallest = 0
    for at, panel in enumerate(board.panels):
        width, height = (WIDTH // 4, HEIGHT // 2) if panel.stat else (WIDTH // 2, HEIGHT)
        if x + width > WIDTH:
            x, y, tallest = 0, y + tallest, 0
        panels.append(_panel(at + 1, panel, {"x": x, "y": y, "w": width, "h": height}))
        x, tallest = x + width, max(tallest, height)
    return {
        "uid": board.uid,
        "title": board.title,
        "tags": ["tartlet"],
        "editable": True,
        "schemaVersion": _SCHEMA,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_datasource(), _namespace()]},
        "panels": panels,
    }


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    drawn: dict[str, Any] = {"unit": panel.unit, "min": None if panel.unit.startswith("date") else 0}
    if panel.stacked:
        drawn["custom"] = {"fillOpacity": 30, "stacking": {"mode": "normal", "group": "A"}}
    told: dict[str, Any] = {
        "id": number,
        "type": "stat" if panel.stat else "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": drawn, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": _SOURCE,
                "expr": expression(query),
                "legendFormat": query.legend or "__auto",
            }
            for at, query in enumerate(panel.queries)
        ],
    }
    if not panel.stat:
        told["options"] = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    return told


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _namespace() -> dict[str, Any]:
    return {
        "name": "namespace",
        "label": "Namespace",
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": "label_values(tartlet_programs_running, namespace)", "refId": "namespaces"},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }
