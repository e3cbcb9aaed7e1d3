"""The figures of Autellix's evaluation, from simulations: what is run, and what is drawn over what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from tartlet_control.order.orders import Order
from tartlet_control.placement.policies import PLACEMENTS, Placement
from tartlet_control.simulation.compare import Row, compare
from tartlet_control.simulation.costs import Costs
from tartlet_control.simulation.load import Trace
from tartlet_control.simulation.loop import Outcome, simulate

SLO_TIMES: Final = 3.0
"""Figure 15: a fleet may take so many times as long for a token as an engine that has nothing else to do."""
_STEPS: Final = 5
"""Times that the range of loads is halved in which the highest within the SLO is sought."""
_RANGE: Final = (0.0, 2.0)
_PARTS: Final = (0.25, 0.5, 0.75, 1.0)
"""Figure 16: parts of the programs that are submitted at once."""
_TAILS: Final = (95, 99)


@dataclass(frozen=True, slots=True)
class Setting:
    """What the figures have in common.

    Attributes:
        title: begins the title of each figure.
        names: the orders.
        make: returns a fresh order of a name.
        costs: of the steps.
        loads: over which most figures are drawn; work that arrives over what fits.
        engines: that serve the load; Figure 15 has 1, 4, 16 and so on up to as many.
        placement: of the calls.
        programs: of a load on one engine.
        load: returns programs for a load, a number of engines and a number of programs.
        told: is called with what is run next.
    """

    title: str
    names: Sequence[str]
    make: Callable[[str], Order]
    costs: Costs
    loads: Sequence[float]
    engines: int
    placement: Placement
    programs: int
    load: Callable[[float, int, int], list[Trace]]
    told: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure: panels side by side, each with its series over `x`."""

    title: str
    x_label: str
    x: Sequence[float]
    panels: Mapping[str, Mapping[str, Sequence[float]]]


def latencies(at: Setting) -> Drawing:
    """Draw the means of response and of the time a token over loads, a line an order (Figure 12)."""
    return _over_loads(
        at, {"mean, ms a token": lambda row: 1e3 * row.a_token_s, "mean response, s": lambda r: r.mean_s}
    )


def tails(at: Setting) -> Drawing:
    """Draw the 95th and 99th percentiles of both over loads, a line an order (Figure 13)."""
    panels: dict[str, Callable[[Row], float]] = {
        "95th percentile, ms a token": lambda row: 1e3 * row.p95_a_token_s,
        "99th percentile, ms a token": lambda row: 1e3 * row.p99_a_token_s,
        "95th percentile response, s": lambda row: row.p95_s,
        "99th percentile response, s": lambda row: row.p99_s,
    }
    return _over_loads(at, panels)


def _over_loads(at: Setting, values: Mapping[str, Callable[[Row], float]]) -> Drawing:
    panels: dict[str, dict[str, list[float]]] = {label: {} for label in values}
    for load in at.loads:
        at.told(f"load {load:g} ...")
        traces = at.load(load, at.engines, at.programs)
        for row in compare(traces, at.names, at.costs, at.make, engines=at.engines, placement=at.placement):
            for label, value in values.items():
                panels[label].setdefault(row.order, []).append(value(row))
    return Drawing(at.title, "load", at.loads, panels)


def placements(at: Setting) -> Drawing:
    """Draw mean and tails of the time a token over loads, a line a placement, under the first order (Figure 14)."""
    labels = ["mean, ms a token", *(f"{tail}th percentile" for tail in _TAILS)]
    panels: dict[str, dict[str, list[float]]] = {label: {} for label in labels}
    engines = max(2, at.engines)
    for load in at.loads:
        traces = at.load(load, engines, at.programs * engines)
        for name in PLACEMENTS:
            at.told(f"load {load:g}, {name} ...")
            placement = Placement(name, at.placement.short_tokens)
            token_s = 1e3 * _token_s(traces, _run(at, traces, engines, placement))
            values = [float(token_s.mean()), *(float(np.percentile(token_s, tail)) for tail in _TAILS)]
            for label, value in zip(labels, values, strict=True):
                panels[label].setdefault(name, []).append(value)
    return Drawing(f"{at.title}, {engines} engines, {at.names[0]}", "load", at.loads, panels)


def scaling(at: Setting) -> Drawing:
    """Draw the highest rate of arrivals within the SLO over the number of engines (Figure 15).

    The SLO is on the mean time a token. One line has the rate, and one what the rate of one engine promises. Each fleet
    has as many programs for each engine: more than the slots of a step, or no load is too high for one.
    """
    fleets = sorted({*(4**n for n in range(at.engines) if 4**n < at.engines), at.engines})
    alone = at.load(1.0, 1, at.programs)
    mean_s = float(np.mean([at.costs.served_s(trace) for trace in alone]))
    slo_s = SLO_TIMES * float(np.mean([_alone_s(at.costs, trace) / trace.decoded for trace in alone]))
    rates = [_highest_load(at, engines, slo_s) * engines / mean_s for engines in fleets]
    linear = [rates[0] * engines for engines in fleets]
    panels = {
        f"programs/s within {1e3 * slo_s:.0f} ms a token": {at.names[0]: rates, "linear": linear},
        "over linear": {at.names[0]: [rate / line for rate, line in zip(rates, linear, strict=True)]},
    }
    return Drawing(f"{at.title}, {at.placement.name}", "engines", fleets, panels)


def makespans(at: Setting) -> Drawing:
    """Draw the time until all programs have ended that arrive at once, over their number (Figure 16)."""
    numbers = [max(1, round(at.programs * part)) for part in _PARTS]
    series: dict[str, list[float]] = {}
    for number in numbers:
        traces = [replace(trace, arrival_s=0.0) for trace in at.load(1.0, at.engines, number)]
        for name in at.names:
            at.told(f"{number} programs under {name} ...")
            ended_s = simulate(traces, at.make(name), at.costs, at.engines, at.placement).ended_s
            series.setdefault(name, []).append(ended_s)
    return Drawing(at.title, "programs, all at once", numbers, {"makespan, s": series})


def optimal(at: Setting) -> Drawing:
    """Draw the time a token over loads beside that of `srpt`, where all steps cost the same (Figure 18)."""
    costs = replace(at.costs, decode_s=0.0, prefill_s=0.0, memory_tokens=0)
    drawn = _over_loads(replace(at, costs=costs), {"mean, ms a token": lambda row: 1e3 * row.a_token_s})
    return replace(drawn, title=f"{at.title}, equal steps")


FIGURES: Final[dict[str, Callable[[Setting], Drawing]]] = {
    "12": latencies,
    "13": tails,
    "14": placements,
    "15": scaling,
    "16": makespans,
    "18": optimal,
}
"""Each figure by its number in the paper."""


def _run(at: Setting, traces: list[Trace], engines: int, placement: Placement) -> Outcome:
    return simulate(traces, at.make(at.names[0]), at.costs, engines, placement, histories=True)


def _token_s(traces: list[Trace], outcome: Outcome) -> np.ndarray:
    return np.divide(outcome.response_s, [trace.decoded for trace in traces])


def _alone_s(costs: Costs, trace: Trace) -> float:
    """Return how long a program takes on an engine that has nothing else to do."""
    return sum(
        costs.prefill_s * sum(p for p, _ in wave) + costs.step_s(len(wave)) * max(d for _, d in wave)
        for wave in trace.waves
    )


def _highest_load(at: Setting, engines: int, slo_s: float) -> float:
    """Return the highest load at which the mean time a token is within the SLO."""
    low, high = _RANGE
    for _ in range(_STEPS):
        load = (low + high) / 2
        at.told(f"{engines} engines, load {load:.3g} ...")
        traces = at.load(load, engines, at.programs * engines)
        if float(_token_s(traces, _run(at, traces, engines, at.placement)).mean()) <= slo_s:
            low = load
        else:
            high = load
    return low
