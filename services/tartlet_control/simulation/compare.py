"""Runs one load under several orders and compares what came of it with the clairvoyant order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tartlet_control.order.orders import Order
from tartlet_control.placement.policies import Placement
from tartlet_control.simulation.costs import Costs
from tartlet_control.simulation.load import Trace
from tartlet_control.simulation.loop import simulate


@dataclass(frozen=True, slots=True)
class Row:
    """What came of a load under one order. Times are in seconds of the simulation."""

    order: str
    mean_s: float
    p95_s: float
    p99_s: float
    a_token_s: float
    """Response over decoded tokens, the mean over programs (Autellix 6.2, program-level token latency)."""
    p95_a_token_s: float
    p99_a_token_s: float
    preempted: int
    restored: int
    """Tokens that had left the memory for others and came back."""
    mean_over_srpt: float
    p99_over_srpt: float


def known(past: Sequence[Trace], order: Order, costs: Costs) -> None:
    """Let an order learn from past programs, as if each had run in full steps."""
    for trace in past:
        order.history.ended(("", trace.name, ""), costs.served_s(trace))


def compare(
    traces: list[Trace],
    names: Sequence[str],
    costs: Costs,
    make: Callable[[str], Order],
    told: Callable[[str], None] = lambda _: None,
    engines: int = 1,
    placement: Placement | None = None,
) -> list[Row]:
    """Run a load under each order; `srpt` runs too, since the others are compared with it.

    Args:
        traces: the programs, by arrival.
        names: the orders.
        costs: of the steps.
        make: returns a fresh order of a name.
        told: is called with the name of each order before that order runs.
        engines: that serve the load.
        placement: chooses the engines of the programs' calls; None: `sticky`.
    """
    decoded = np.array([t.decoded for t in traces])
    responses = {}
    preempted, restored = {}, {}
    for name in dict.fromkeys(("srpt", *names)):
        told(name)
        outcome = simulate(traces, make(name), costs, engines, placement)
        responses[name] = np.array(outcome.response_s)
        preempted[name], restored[name] = outcome.preempted, outcome.restored
    best = responses["srpt"]
    return [
        Row(
            name,
            *_mean_and_tails(response),
            *_mean_and_tails(response / decoded),
            preempted[name],
            restored[name],
            float(response.mean() / best.mean()),
            float(np.percentile(response, 99) / np.percentile(best, 99)),
        )
        for name, response in responses.items()
    ]


def _mean_and_tails(values: np.ndarray) -> tuple[float, float, float]:
    """Return mean, 95th and 99th percentile of values, float64 `[programs]`."""
    return float(values.mean()), float(np.percentile(values, 95)), float(np.percentile(values, 99))
