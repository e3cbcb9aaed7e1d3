"""Loads for the simulation: programs as waves of parallel calls, from the shapes of Autellix 6.1 or from a file.

A line of a file is one program, as JSON: `{"arrival_s": 0.5, "name": "agent", "waves": [[[735, 34]], [[120, 40]]]}`.
Each wave is a list of calls that run side by side, each a pair of tokens to prefill and tokens to decode; a wave begins
when the calls of the one before have ended, `pauses_s[i]` seconds later if the line has `pauses_s`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

Call = tuple[int, int]
"""Tokens to prefill and tokens to decode."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One program: when it arrives, and its calls."""

    name: str
    arrival_s: float
    waves: tuple[tuple[Call, ...], ...]
    pauses_s: tuple[float, ...] = ()
    """The time before each wave in which the program computes nothing; none if empty."""

    @property
    def decoded(self) -> int:
        """Tokens that all its calls decode."""
        return sum(decode for wave in self.waves for _, decode in wave)


@dataclass(frozen=True, slots=True)
class Shape:
    """The means of one workload of Autellix 6.1, and how far its programs spread (the coefficient of variation)."""

    calls: float
    calls_spread: float
    most_calls: int
    prefill: float
    decode: float
    decode_spread: float
    width: int = 1
    """Calls that run side by side."""


SHAPES: Final = {
    "chat": Shape(6.66, 1.3, 80, 256, 277, 1.0),
    "react": Shape(10.75, 0.9, 70, 735, 34, 0.8),
    "tree": Shape(159.7, 0.6, 600, 467, 72.6, 0.6, width=5),
}
"""Chatbot (ShareGPT), ReAct agent (BFCL) and tree search (LATS). The paper gives means and most calls; the spreads are
ours."""
MIXES: Final = {
    "chat": ("chat",),
    "react": ("react",),
    "tree": ("tree",),
    "mixed": ("chat", "react", "tree"),
}


def generate(mix: str, programs: int, rng: np.random.Generator) -> list[Trace]:
    """Make programs of a mix, a share of each shape, all arriving at 0. `spaced` spreads the arrivals."""
    names = [MIXES[mix][i] for i in rng.integers(len(MIXES[mix]), size=programs)]
    return [Trace(name, 0.0, _waves(SHAPES[name], rng)) for name in names]


def spaced(traces: list[Trace], mean_s: float, rng: np.random.Generator) -> list[Trace]:
    """Let programs arrive one after the other, `mean_s` apart on average (a Poisson process)."""
    arrivals = np.cumsum(rng.exponential(mean_s, len(traces))).tolist()
    return [Trace(t.name, at, t.waves, t.pauses_s) for t, at in zip(traces, arrivals, strict=True)]


def stretched(traces: list[Trace], over_s: float) -> list[Trace]:
    """Spread the arrivals, which keep their pattern, over as many seconds. All at once stays all at once."""
    last = max((t.arrival_s for t in traces), default=0.0)
    by = over_s / last if last else 1.0
    return [Trace(t.name, t.arrival_s * by, t.waves, t.pauses_s) for t in traces]


def read(path: Path) -> list[Trace]:
    """Read a file of programs, one JSON object a line.

    Raises:
        ValueError: a line isn't of that form; the message names the line and what it lacks.
    """
    traces = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.strip():
            try:
                traces.append(_parsed(json.loads(line)))
            except (KeyError, TypeError, ValueError) as e:
                raise ValueError(f"{path}, line {number}: {_wrong(e)}") from e
    if not traces:
        raise ValueError(f"{path} has no programs: write one JSON object a line, with arrival_s, name and waves")
    return sorted(traces, key=lambda t: t.arrival_s)


def _parsed(entry: dict[str, Any]) -> Trace:
    waves = tuple(tuple((int(p), int(d)) for p, d in wave) for wave in entry["waves"])
    if not waves or not all(waves) or any(p < 0 or d < 1 for wave in waves for p, d in wave):
        raise ValueError("waves needs at least one call, each of at least one token to decode")
    pauses = tuple(float(s) for s in entry.get("pauses_s", ()))
    if pauses and len(pauses) != len(waves):
        raise ValueError(f"pauses_s has {len(pauses)} entries for {len(waves)} waves")
    arrival = float(entry.get("arrival_s", 0.0))
    if not 0 <= arrival < float("inf") or any(not 0 <= s < float("inf") for s in pauses):
        raise ValueError("arrival_s and pauses_s are seconds of at least 0")
    return Trace(str(entry.get("name", "program")), arrival, waves, pauses)


def _wrong(error: Exception) -> str:
    return f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)


def _waves(shape: Shape, rng: np.random.Generator) -> tuple[tuple[Call, ...], ...]:
    left = int(np.clip(_spread(shape.calls, shape.calls_spread, rng), 1, shape.most_calls))
    waves: list[tuple[Call, ...]] = []
    while left > 0:
        width = min(left, shape.width)
        waves.append(
            tuple(
                (
                    max(1, int(_spread(shape.prefill, 0.5, rng))),
                    max(1, int(_spread(shape.decode, shape.decode_spread, rng))),
                )
                for _ in range(width)
            )
        )
        left -= width
    return tuple(waves)


def _spread(mean: float, spread: float, rng: np.random.Generator) -> float:
    """Draw from a log-normal distribution of this mean and coefficient of variation."""
    variance = np.log(1 + spread * spread)
    return float(rng.lognormal(np.log(mean) - variance / 2, np.sqrt(variance)))
