"""The figures of Autellix that `tartlet simulate` draws: their series, and what must hold of any of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tartlet_control.order.orders import Order
from tartlet_control.placement.policies import PLACEMENTS, Placement
from tartlet_control.simulation.__main__ import main
from tartlet_control.simulation.costs import Costs
from tartlet_control.simulation.load import Trace
from tartlet_control.simulation.loop import simulate

PLAIN = Costs(slots=8, every=4)


def drawn(tmp_path: Path, figure: str, *flags: str) -> dict[str, Any]:
    picture, numbers = tmp_path / "figure.svg", tmp_path / "figure.json"
    every = ["--mix", "react", "--slots", "8", "--every", "16", "--order", "fcfs", "--order", "plas"]
    assert main(["--figure", figure, "--plot", str(picture), "--json", str(numbers), *every, *flags]) == 0
    drawing: dict[str, Any] = json.loads(numbers.read_text())
    lines = [e for e in ET.fromstring(picture.read_text()).iter() if e.tag.endswith("polyline")]
    assert len(lines) == sum(len(series) for series in drawing["panels"].values())
    for series in drawing["panels"].values():
        assert all(len(values) == len(drawing["x"]) and min(values) > 0 for values in series.values())
    return drawing


def test_figures_12_and_13_have_means_and_tails_of_response_and_of_the_time_a_token(tmp_path: Path) -> None:
    flags = ("--programs", "40", "--loads", "0.6,1.2")
    means, tails = (drawn(tmp_path, figure, *flags) for figure in ("12", "13"))
    assert list(means["panels"]) == ["mean, ms a token", "mean response, s"]
    assert list(tails["panels"]) == [
        f"{part}th percentile{of}" for of in (", ms a token", " response, s") for part in (95, 99)
    ]
    for series in (*means["panels"].values(), *tails["panels"].values()):
        assert set(series) == {"srpt", "fcfs", "plas"}
        assert series["fcfs"][0] < series["fcfs"][1], "more load takes longer"
    for name in ("srpt", "fcfs", "plas"):
        for mean, p95, p99 in (
            ("mean, ms a token", "95th percentile, ms a token", "99th percentile, ms a token"),
            ("mean response, s", "95th percentile response, s", "99th percentile response, s"),
        ):
            both = zip(means["panels"][mean][name], tails["panels"][p95][name], tails["panels"][p99][name], strict=True)
            assert all(m < a < b for m, a, b in both)


def test_figure_14_has_mean_and_tails_of_each_placement(tmp_path: Path) -> None:
    drawing = drawn(tmp_path, "14", "--programs", "20", "--loads", "0.6,1.0", "--engines", "3")
    assert drawing["x"] == [0.6, 1.0]
    assert [set(series) for series in drawing["panels"].values()] == [set(PLACEMENTS)] * 3
    mean, p95, p99 = drawing["panels"].values()
    for name in PLACEMENTS:
        assert all(a <= b <= c for a, b, c in zip(mean[name], p95[name], p99[name], strict=True))
        assert mean[name][0] < mean[name][1], "more load takes longer"


def test_figure_15_compares_each_fleet_with_as_many_times_one_engine(tmp_path: Path) -> None:
    drawing = drawn(tmp_path, "15", "--programs", "24", "--engines", "4", "--placement", "locality")
    assert drawing["x"] == [1, 4]
    rates, over = drawing["panels"].values()
    assert rates["linear"] == [rates["fcfs"][0], 4 * rates["fcfs"][0]]
    assert over["fcfs"][0] == 1.0
    assert over["fcfs"][1] == pytest.approx(rates["fcfs"][1] / rates["linear"][1])
    assert over["fcfs"][1] > 0.6, "contexts that stay where they are make a fleet worth its engines"


def test_figure_16_has_the_time_until_all_of_more_and_more_programs_have_ended(tmp_path: Path) -> None:
    drawing = drawn(tmp_path, "16", "--programs", "40")
    assert drawing["x"] == [10, 20, 30, 40]
    [series] = drawing["panels"].values()
    assert set(series) == {"fcfs", "plas"}
    for values in series.values():
        assert values[0] < values[-1] < 8 * values[0]


def test_figure_18_has_the_optimum_below_all_orders(tmp_path: Path) -> None:
    drawing = drawn(tmp_path, "18", "--programs", "60", "--loads", "0.9,1.3")
    [series] = drawing["panels"].values()
    assert set(series) == {"srpt", "fcfs", "plas"}
    assert series["srpt"][-1] < min(series["fcfs"][-1], series["plas"][-1])


@pytest.mark.parametrize("flags", [["--figure", "14"], ["--figure", "17", "--plot", "x.svg"], ["--journals", "there"]])
def test_flags_that_make_no_figure_are_refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as told:
        main(flags)
    assert told.value.code == 2
    assert flags[0] in capsys.readouterr().err


TALK = Trace("talk", 0.0, (((100, 20),), ((10, 20),), ((10, 20), (10, 20)), ((10, 20),)))


def prefilled(placement: str, engines: int, **changes: Any) -> int:
    traces = [replace(TALK, arrival_s=0.001 * n) for n in range(4)]
    made = Placement(placement, **changes)
    return simulate(traces, Order("fcfs"), PLAIN, engines, made, histories=True).prefilled


def test_a_call_on_another_engine_computes_what_its_program_has_computed_elsewhere() -> None:
    once = 4 * sum(prefill for wave in TALK.waves for prefill, _ in wave)
    assert prefilled("round-robin", 1) == once
    assert prefilled("autellix", 2, short_tokens=0) == once, "all calls are long, and stay"
    assert prefilled("sticky", 2) == once
    assert prefilled("locality", 3) <= prefilled("round-robin", 3)
    assert once + 3 * 100 < prefilled("round-robin", 3)
    apart = simulate([TALK], Order("fcfs"), PLAIN, 2, Placement("round-robin"))
    assert apart.prefilled == once / 4, "without histories each call is by itself"
