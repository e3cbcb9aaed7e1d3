"""Which engine has too much, and which takes what leaves it (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tartlet_control.placement.view import EngineView

OVERLOADED_S: Final = 2.0
"""An engine that has had too much for so long gives programs away."""
JOINED_S: Final = 10.0
"""So long after an engine has joined, the others give it programs without waiting."""
_APART: Final = 2
"""Two engines that differ by fewer calls are equal: one that moves would only change their roles."""

_MORE: Final = 1.5
"""Of two engines that both have too many calls, one with this many times the other's gives some away."""
_FEW: Final = 4
_SLOWER: Final = 1.5
"""A step that takes this many times as long as one of half the calls keeps the device busy."""


def too_much(engines: Sequence[EngineView], most_calls: Mapping[str, int]) -> dict[str, str]:
    """Return the engines that have more calls than a step takes while others have fewer, each with the one to move to.

    Args:
        engines: of one model.
        most_calls: commands that a step of each engine takes.

    Example:
        >>> engines = [EngineView("a", calls=9, programs=9), EngineView("b", calls=2, programs=2)]
        >>> too_much(engines, {"a": 8, "b": 8}), too_much(engines, {"a": 16, "b": 16})
        ({'a': 'b'}, {})
    """
    if len(engines) < _APART:
        return {}
    least = min(engines, key=lambda e: (e.calls, e.programs))
    return {
        engine.id: least.id
        for engine in engines
        if engine.calls > most_calls[engine.id]
        and engine.calls - least.calls >= _APART
        and (least.calls < most_calls[least.id] or engine.calls > _MORE * least.calls)
    }


def comfortable(calls: int, most: int, step_s: float, half_s: float) -> int:
    """Return how many calls an engine serves as fast as half of them: with more, others are slowed down.

    Args:
        calls: that it serves.
        most: commands that a step takes.
        step_s: that a step of one token of each call takes.
        half_s: that a step of half of them takes.

    Example:
        >>> comfortable(8, 64, 0.010, 0.009), comfortable(8, 64, 0.010, 0.006)
        (64, 4)
    """
    if calls >= _FEW and half_s and step_s > _SLOWER * half_s:
        return min(most, calls // 2)
    return most
