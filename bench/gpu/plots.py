"""Plots of the proof, as PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path


def lines(file: Path, title: str, x: str, y: str, of: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    """Draw one line a label over logarithmic axes; without matplotlib there is no plot."""
    try:
        import matplotlib as mpl
    except ModuleNotFoundError:
        return
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5))
    for label, points in of.items():
        axes.plot(*zip(*points, strict=True), marker="o", label=label)
    axes.set(title=title, xlabel=x, ylabel=y, xscale="log", yscale="log")
    axes.legend()
    figure.tight_layout()
    figure.savefig(file.with_suffix(".png"), dpi=120)
    plt.close(figure)
