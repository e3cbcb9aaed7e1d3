"""Medians of repeated measurements, and how sure they are."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

RESAMPLES = 2000


def median(values: Sequence[float]) -> float:
    """The median; benchmarks quote nothing else of repeated runs."""
    return statistics.median(values)


def resolved(low: float, high: float) -> str:
    """Say what the interval of a ratio shows.

    Example:
        >>> resolved(0.99, 1.03), resolved(1.01, 1.03)
        ('not resolved below 3%', '1.010 to 1.030')
    """
    if low <= 1 <= high:
        return f"not resolved below {100 * max(1 - low, high - 1):.2g}%"
    return f"{low:.3f} to {high:.3f}"


def bootstrap_median(values: Sequence[float], *, share: float = 0.95) -> tuple[float, float]:
    """Bound the median of `values` by a percentile bootstrap.

    Args:
        values: at least one; with fewer than three the interval is their range.
        share: of the resampled medians that lie within the interval.

    Returns:
        Lower and upper end. The resampling has a fixed seed: the same values give the same interval.
    """
    if len(values) < 3:
        return min(values), max(values)
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(RESAMPLES))
    cut = (1 - share) / 2
    return medians[int(cut * RESAMPLES)], medians[min(RESAMPLES - 1, int((1 - cut) * RESAMPLES))]
