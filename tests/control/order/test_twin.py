"""Control's core and the simulation do the same with the same load: who goes first, and where each call goes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tartlet_control.order.orders import LIVE, Order
from tartlet_control.placement.policies import PLACEMENTS, Placement
from tartlet_control.simulation.costs import Costs
from tartlet_control.simulation.load import Trace, spaced
from tartlet_control.simulation.loop import simulate
from tests.control.twin import Twin

QUANTA_S = (0.0213, 0.0431, 0.0817, 0.163, 0.327)


def agents(programs: int, mean_s: float, prefill: int, seed: int = 1, longest: int = 12) -> list[Trace]:
    """Return programs of one to `longest` calls, one after the other, which arrive so far apart on average."""
    rng = np.random.default_rng(seed)
    traces = []
    for _ in range(programs):
        calls = int(rng.integers(1, longest + 1))
        waves = tuple((((prefill * int(rng.integers(1, 4))), int(rng.integers(2, 12))),) for _ in range(calls))
        traces.append(Trace("long" if calls > longest // 2 else "short", 0.0, waves))
    return spaced(traces, mean_s, rng)


@pytest.mark.parametrize("name", LIVE)
def test_programs_end_at_the_same_times_under_each_order(name: str) -> None:
    beta = 7.3  # so that no program starves at the very moment of a step
    costs = Costs(fixed_s=0.01, decode_s=0.0005, prefill_s=0.0, slots=2, every=1)
    traces = agents(26, 0.13, prefill=1)
    traces = [replace(t, waves=tuple(((1, decode),) for ((_, decode),) in t.waves)) for t in traces]
    expected = simulate(traces, Order(name, QUANTA_S, beta), costs)
    twin = Twin(traces, costs, order=name, order_quanta_s=",".join(map(str, QUANTA_S)), order_starved_at=beta)
    twin.run()
    assert max(twin.response_s) > 1.0, "programs wait for each other"
    if name == "round-robin":  # of calls that wait since the same moment, control stops one that computes for a new one
        assert np.mean(twin.response_s) == pytest.approx(np.mean(expected.response_s), rel=0.03)
    else:
        assert twin.response_s == pytest.approx(expected.response_s)


@pytest.mark.parametrize("name", sorted(PLACEMENTS.keys() - {"locality"}))
@pytest.mark.parametrize("engines", [2, 3])
def test_each_call_goes_to_the_same_engine_under_each_placement(name: str, engines: int) -> None:
    costs = Costs(fixed_s=0.01, decode_s=0.0002, prefill_s=0.0001, slots=16, every=1)
    traces = agents(40, 0.06, prefill=20)
    expected = simulate(traces, Order("fcfs", starved_at=0), costs, engines, Placement(name, 30))
    twin = Twin(traces, costs, engines, order="fcfs", placement=name, placement_short_tokens=30)
    twin.run()
    same = [
        here == there.replace("e00", "e")
        for waves, others in zip(twin.engines, expected.engines, strict=True)
        for here, there in zip(waves, others, strict=True)
    ]
    assert sum(same) >= 0.95 * len(same), "two calls that begin at the very same moment may take each other's turn"
    assert np.mean(twin.response_s) == pytest.approx(np.mean(expected.response_s), rel=0.01)
    moved = sum(len(set(waves)) > 1 for waves in twin.engines)
    assert (moved == 0) == (name == "sticky"), "all but one place each call"


@pytest.mark.parametrize("name", ["least-used", "round-robin"])
def test_calls_that_run_side_by_side_are_on_one_engine(name: str) -> None:
    costs = Costs(fixed_s=0.01, decode_s=0.0002, prefill_s=0.0001, slots=16, every=1)
    traces = [replace(t, waves=tuple(wave * 3 for wave in t.waves)) for t in agents(20, 0.1, prefill=20)]
    twin = Twin(traces, costs, 2, order="fcfs", placement=name)
    twin.run()
    assert [len(waves) for waves in twin.engines] == [len(trace.waves) for trace in traces]
    assert any(len(set(waves)) > 1 for waves in twin.engines)
