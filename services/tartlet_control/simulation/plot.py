"""Draws the panels of a figure, such as how response times grow with the load under each order, as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

_WIDTH: Final = 420
_HEIGHT: Final = 300
_LEFT: Final = 56
_TOP: Final = 34
_BOTTOM: Final = 44
_COLOURS: Final = ("#4063d8", "#d1495b", "#3a9d5d", "#c58b00", "#8e5bb5", "#2a9d8f", "#555555")
_TICKS: Final = 4


def svg(title: str, x: Sequence[float], panels: Mapping[str, Mapping[str, Sequence[float]]], x_label: str) -> str:
    """Return a figure of panels side by side, each with a line for every series.

    Args:
        title: of the figure.
        x: positions of the points, rising, at least one.
        panels: by their titles the series by name, each with a value for every position.
        x_label: what the positions are.

    Example:
        >>> figure = svg("Orders", [0.5, 1.0], {"mean s": {"fcfs": [1.0, 4.0]}}, "load")
        >>> figure.count("<polyline"), figure.startswith("<svg")
        (1, True)
    """
    names = list(dict.fromkeys(name for series in panels.values() for name in series))
    width, height = _WIDTH * len(panels), _HEIGHT + 24 * (1 + (len(names) - 1) // 4)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">',
        '<style>text { font-size: 11px }</style><rect width="100%" height="100%" fill="white"/>',
        f'<text x="{width / 2}" y="16" text-anchor="middle" font-size="13">{escape(title)}</text>',
    ]
    for at, (label, series) in enumerate(panels.items()):
        parts += _panel(at * _WIDTH, label, x, series, names, x_label)
    for i, name in enumerate(names):
        left, top = _LEFT + i % 4 * 110, _HEIGHT + 10 + i // 4 * 20
        parts.append(f'<rect x="{left}" y="{top}" width="10" height="10" fill="{_colour(i)}"/>')
        parts.append(f'<text x="{left + 14}" y="{top + 9}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(
    left: float, label: str, x: Sequence[float], series: Mapping[str, Sequence[float]], names: list[str], x_label: str
) -> list[str]:
    top_value = max((v for values in series.values() for v in values), default=1.0) or 1.0
    low, high = x[0], x[-1] if x[-1] > x[0] else x[0] + 1.0
    inner, tall = _WIDTH - _LEFT - 16, _HEIGHT - _TOP - _BOTTOM

    def place(at: float, value: float) -> tuple[float, float]:
        return left + _LEFT + inner * (at - low) / (high - low), _TOP + tall * (1 - value / top_value)

    parts = [f'<text x="{left + _LEFT}" y="{_TOP - 6}">{escape(label)}</text>']
    for tick in range(_TICKS + 1):
        value = top_value * tick / _TICKS
        _, y = place(low, value)
        parts.append(f'<path d="M{left + _LEFT} {y:.1f}h{inner}" stroke="#ddd"/>')
        parts.append(f'<text x="{left + _LEFT - 4}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>')
    for at in x:
        across, _ = place(at, 0)
        parts.append(f'<text x="{across:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{at:g}</text>')
    middle = left + _LEFT + inner / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 10}" text-anchor="middle">{escape(x_label)}</text>')
    for name, values in series.items():
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in (place(*p) for p in zip(x, values, strict=True)))
        colour = _colour(names.index(name))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
    return parts


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]
