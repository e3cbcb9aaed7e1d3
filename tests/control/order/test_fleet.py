"""The simulation of several engines and of their memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tartlet_control.order.orders import Order
from tartlet_control.placement.policies import PLACEMENTS, Placement
from tartlet_control.simulation import load
from tartlet_control.simulation.costs import Costs
from tartlet_control.simulation.load import Trace
from tartlet_control.simulation.loop import simulate

COSTS = Costs(slots=4)


def many(programs: int, engines: int, at: float = 0.9) -> list[Trace]:
    rng = np.random.default_rng(3)
    traces = load.generate("react", programs, rng)
    mean_s = float(np.mean([COSTS.served_s(trace) for trace in traces]))
    return load.spaced(traces, mean_s / at / engines, rng)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_four_engines_serve_four_times_the_load(placement: str) -> None:
    one = simulate(many(40, 1), Order("fcfs"), COSTS)
    four = simulate(many(160, 4), Order("fcfs"), COSTS, 4, Placement(placement))
    assert len(four.response_s) == 160
    assert all(response > 0 for response in four.response_s)
    assert np.mean(four.response_s) < 1.5 * np.mean(one.response_s)
    assert four.ended_s < 1.5 * one.ended_s


def test_long_calls_stay_at_their_programs_home_and_short_ones_go_where_the_fewest_are() -> None:
    short, long = (10, 5), (100, 5)
    talk = Trace("talk", 0.0, ((long,), (short,)) * 12)
    others = [Trace("other", 0.02 * n, ((short,),) * (1 + n % 3)) for n in range(60)]
    [first, *_] = simulate([talk, *others], Order("fcfs"), COSTS, 3, Placement("autellix", short_tokens=50)).engines
    assert len(set(first[::2])) == 1
    assert len(set(first[1::2])) > 1


def test_a_program_stays_or_each_of_its_calls_is_placed_as_the_placement_says() -> None:
    traces = many(60, 3)
    of = {name: simulate(traces, Order("fcfs"), COSTS, 3, Placement(name, 500)).engines for name in PLACEMENTS}
    assert all(len(set(engines)) == 1 for engines in of["sticky"])
    turns = [engine for engines in of["round-robin"] for engine in engines]
    assert max(map(turns.count, set(turns))) - min(map(turns.count, set(turns))) <= 1
    assert any(len(set(engines)) > 1 for engines in of["least-used"])
    assert all(len(engines) == len(trace.waves) for trace, engines in zip(traces, of["autellix"], strict=True))


def responses(traces: Sequence[Trace], costs: Costs) -> tuple[float, int]:
    outcome = simulate(list(traces), Order("plas"), costs)
    return float(np.mean(outcome.response_s)), outcome.restored


def test_memory_that_is_too_small_costs_time_and_swaps_cost_less_than_computing_again() -> None:
    traces = many(40, 1, at=1.2)
    unlimited = responses(traces, COSTS)
    assert unlimited[1] == 0
    assert responses(traces, replace(COSTS, memory_tokens=10**9)) == unlimited
    tight = replace(COSTS, memory_tokens=4000, prefill_s=0.0005)
    base, _ = responses(traces, replace(COSTS, prefill_s=0.0005))
    again, restored = responses(traces, tight)
    swapped, _ = responses(traces, replace(tight, swap_s=0.00001))
    assert restored > 0
    assert base < again
    assert swapped < again


def test_a_call_larger_than_the_memory_runs_alone() -> None:
    traces = [Trace("large", 0.0, (((5000, 3),),)), Trace("small", 0.0, (((5, 3),),))]
    outcome = simulate(traces, Order("fcfs"), replace(COSTS, memory_tokens=100))
    assert all(response > 0 for response in outcome.response_s)
