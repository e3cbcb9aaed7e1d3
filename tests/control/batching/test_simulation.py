"""The order of the policies under load, without noise (Pie, Table 5); `bench batching` measures the real thing."""

from __future__ import annotations

from math import inf

import pytest

from tartlet_control.batching import batcher, policies
from tartlet_control.batching import return_times as returns
from tests.control.simulation import Costs, Simulation

SMALL_MODEL_ON_CPU = Costs(fixed_s=0.0015, token_s=0.00012)
LARGE_MODEL_ON_CPU = Costs(fixed_s=0.02, token_s=0.004)
GPU = Costs(fixed_s=0.006, token_s=0.00001)
ALL = {"small": SMALL_MODEL_ON_CPU, "large": LARGE_MODEL_ON_CPU, "gpu": GPU}


def tokens_per_s(costs: Costs, policy: str, tokens: int = 12) -> float:
    return Simulation(costs, programs=128, tokens=tokens, policy=policy).run()


@pytest.mark.parametrize("costs", ALL.values(), ids=ALL)
def test_adaptive_is_about_the_best(costs: Costs) -> None:
    adaptive = tokens_per_s(costs, "adaptive")
    assert adaptive >= 0.97 * max(tokens_per_s(costs, "k-only"), tokens_per_s(costs, "t-only"))


@pytest.mark.parametrize(("costs", "times"), [(SMALL_MODEL_ON_CPU, 5), (GPU, 15)])
def test_adaptive_is_far_better_than_no_batching(costs: Costs, times: float) -> None:
    assert tokens_per_s(costs, "adaptive", 4) >= times * tokens_per_s(costs, "eager", 4)


def test_forming_the_second_step_late_keeps_batches_large(monkeypatch: pytest.MonkeyPatch) -> None:
    late = Simulation(GPU, programs=128, tokens=12, policy="adaptive")
    late_tokens_per_s = late.run()
    monkeypatch.setattr(policies, "LEAD_S", 1e9)  # at once
    monkeypatch.setattr(batcher, "WORTH", -1.0)  # and groups that missed each other stay apart
    early = Simulation(GPU, programs=128, tokens=12, policy="adaptive")
    assert late_tokens_per_s > 1.2 * early.run()
    assert late.steps < 0.8 * early.steps


@pytest.mark.parametrize(("programs", "times"), [(2, 1.4), (8, 1.4), (32, 1.25)])
def test_groups_that_missed_each_other_meet_again(programs: int, times: float, monkeypatch: pytest.MonkeyPatch) -> None:
    together = Simulation(GPU, programs=programs, tokens=48, policy="adaptive")
    tokens_per_s = together.run()
    assert together.steps <= 48 + 6
    monkeypatch.setattr(batcher, "WORTH", -1.0)
    assert tokens_per_s > times * Simulation(GPU, programs=programs, tokens=48, policy="adaptive").run()


@pytest.mark.parametrize("programs", [2, 32])
def test_nobody_waits_for_programs_that_think_longer_than_a_step_costs(
    programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = Costs(fixed_s=0.006, token_s=0.00001, think_s=0.010)
    with_returns = Simulation(costs, programs=programs, tokens=48, policy="adaptive").run()
    monkeypatch.setattr(batcher, "WORTH", -1.0)
    assert with_returns == pytest.approx(Simulation(costs, programs=programs, tokens=48, policy="adaptive").run(), 0.01)


@pytest.mark.parametrize(
    ("costs", "times"),
    [
        (Costs(fixed_s=0.004, token_s=0.0011, think_s=0.003, guest_s=0.0003, launch_s=0.0), 1.15),
        (Costs(fixed_s=0.014, token_s=0.00025, think_s=0.003, guest_s=0.0002, launch_s=0.0), 1.0),
    ],
    ids=["a step costs by its tokens", "a step costs by itself"],
)
def test_a_group_is_cut_where_its_programs_take_longer_than_another_step_costs(
    costs: Costs, times: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first half computes while the other is on its way."""
    cut = Simulation(costs, programs=32, tokens=48, policy="adaptive", seen=(1, 8))
    tokens_per_s = cut.run()
    monkeypatch.setattr(returns, "APART", inf)
    whole = Simulation(costs, programs=32, tokens=48, policy="adaptive", seen=(1, 8))
    assert tokens_per_s >= times * whole.run()
    assert (cut.steps > 1.5 * whole.steps) == (times > 1.0)
