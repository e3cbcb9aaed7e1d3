"""`tartlet simulate` and the files that it reads."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tartlet_control.simulation import costs, formats, load
from tartlet_control.simulation.__main__ import main
from tartlet_control.simulation.costs import Costs


def test_a_file_of_programs_is_simulated_and_its_numbers_written(tmp_path: Path) -> None:
    trace, numbers = tmp_path / "programs.jsonl", tmp_path / "numbers.json"
    lines = [
        {"arrival_s": 1.0, "name": "late", "waves": [[[0, 4]]]},
        {"arrival_s": 0.0, "name": "agent", "waves": [[[10, 8]], [[0, 2], [0, 2]]], "pauses_s": [0, 3]},
    ]
    trace.write_text("\n".join(json.dumps(line) for line in lines))
    assert main(["--trace", str(trace), "--order", "fcfs", "--fixed-ms", "1000", "--json", str(numbers)]) == 0
    rows = {row["order"]: row for row in json.loads(numbers.read_text())}
    assert set(rows) == {"srpt", "fcfs"}
    # the agent: 8 steps of 1 s, a pause of 3 s, 2 steps; the other program came during the first step, and its
    # 4 steps end within the agent's 8, one of which is cut in two by a new decision
    assert rows["fcfs"]["p99_s"] == pytest.approx(14.0, abs=0.1)


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        "[1]",
        "nonsense",
        '{"waves": []}',
        '{"waves": [[]]}',
        '{"waves": [[[1, 0]]]}',
        '{"waves": [[[-1, 1]]]}',
        '{"waves": [[[1, 1]]], "pauses_s": [1, 2]}',
        '{"waves": [[[1, 1]]], "arrival_s": -1}',
        '{"waves": [[[1, 1]]], "arrival_s": NaN}',
    ],
)
def test_a_line_that_is_no_program_is_named(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "programs.jsonl"
    trace.write_text('{"waves": [[[1, 1]]]}\n' + line)
    with pytest.raises(ValueError, match="line 2"):
        load.read(trace)
    assert main(["--trace", str(trace)]) == 2
    assert "line 2" in capsys.readouterr().err


def test_traces_of_requests_are_read_as_programs(tmp_path: Path) -> None:
    azure = tmp_path / "azure.csv"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:05.4799600,3180,8\n"
    )
    assert [(t.arrival_s, t.waves) for t in formats.azure(azure)] == [(0.0, (((4808, 10),),)), (1.5, (((3180, 8),),))]
    azure.write_text("TIMESTAMP,ContextTokens\n2023-11-16 18:17:03,4808\n")
    with pytest.raises(ValueError, match="line 2"):
        formats.azure(azure)
    requests = [
        {"timestamp": 0, "input_length": 2100, "output_length": 5, "hash_ids": [0, 1, 2, 3, 4]},
        {"timestamp": 1000, "input_length": 2100, "output_length": 6, "hash_ids": [0, 1, 5, 6, 7]},
        {"timestamp": 3000, "input_length": 2700, "output_length": 7, "hash_ids": [0, 1, 2, 3, 8, 9]},
        {"timestamp": 9000, "input_length": 3000, "output_length": 8, "hash_ids": [0, 1, 2, 3, 8, 10]},
    ]
    mooncake = tmp_path / "mooncake.jsonl"
    mooncake.write_text("\n".join(map(json.dumps, requests)))
    assert formats.is_mooncake(mooncake)
    first, second = formats.read_mooncake(mooncake)
    assert first.waves == (((2100, 5),), ((2700 - 4 * 512, 7),), ((3000 - 5 * 512, 8),))
    assert first.pauses_s == (0.0, 3.0, 6.0)
    assert (second.arrival_s, second.waves) == (1.0, (((2100, 6),),))
    mooncake.write_text('{"hash_ids": [0], "timestamp": 0}')
    with pytest.raises(ValueError, match="input_length is missing"):
        formats.read_mooncake(mooncake)


def test_a_figure_has_a_line_for_each_order_in_each_panel(tmp_path: Path) -> None:
    figure = tmp_path / "orders.svg"
    few = ["--programs", "12", "--past", "20", "--order", "fcfs", "--order", "plas"]
    assert main([*few, "--plot", str(figure), "--loads", "0.5,1.2"]) == 0
    root = ET.fromstring(figure.read_text())
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 2 * 3  # srpt is in every figure
    assert all(len(line.attrib["points"].split()) == 2 for line in lines)


def test_costs_that_a_real_engine_had_are_read_and_flags_go_before_them(tmp_path: Path) -> None:
    trace, numbers, file = tmp_path / "programs.jsonl", tmp_path / "numbers.json", tmp_path / "costs.json"
    trace.write_text('{"waves": [[[10, 8]]]}')
    measured = Costs(2.0, 0.5, 0.25, slots=3, every=1, memory_tokens=64, swap_s=1e-3)
    costs.write(file, measured)
    assert costs.read(file) == measured

    def took_s(*flags: str) -> float:
        assert main(["--trace", str(trace), "--order", "fcfs", "--json", str(numbers), *flags]) == 0
        return float(json.loads(numbers.read_text())[0]["mean_s"])

    assert took_s("--costs", str(file)) == pytest.approx(8 * 2.5 + 10 * 0.25)
    assert took_s("--costs", str(file), "--fixed-ms", "1000") == pytest.approx(8 * 1.5 + 10 * 0.25)
    file.write_text('{"fixed_s": 1}')
    assert costs.read(file) == Costs(1)


@pytest.mark.parametrize(("order", "beta"), [("gittins", 64), ("plas", 8)])
def test_an_order_has_its_own_beta_unless_one_is_named(order: str, beta: int, tmp_path: Path) -> None:
    def means(*flags: str) -> list[float]:
        few = ["--programs", "60", "--past", "60", "--slots", "4", "--load", "1.3", "--order", order]
        assert main([*few, *flags, "--json", str(tmp_path / "numbers.json")]) == 0
        return [row["mean_s"] for row in json.loads((tmp_path / "numbers.json").read_text())]

    assert means() == means("--beta", str(beta)) != means("--beta", "2")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("nonsense", "JSON object"),
        ("[1]", "JSON object"),
        ('{"fixed_ms": 10}', "fixed_ms"),
        ('{"fixed_s": 0}', "fixed_s"),
        ('{"decode_s": NaN}', "decode_s"),
        ('{"prefill_s": "1"}', "prefill_s"),
        ('{"slots": 0}', "slots"),
        ('{"slots": 1.5}', "slots"),
        ('{"memory_tokens": true}', "memory_tokens"),
    ],
)
def test_a_file_that_has_no_costs_is_refused(
    text: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "costs.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=named):
        costs.read(file)
    assert main(["--costs", str(file)]) == 2
    assert named in capsys.readouterr().err
    assert main(["--costs", str(tmp_path / "nowhere.json")]) == 2


@pytest.mark.parametrize(("name", "data"), [("a.jsonl", b"5"), ("a.jsonl", b"\xff"), ("a.jsonl", b""), ("a.csv", b"")])
def test_a_file_that_is_no_trace_is_a_typed_error(
    name: str, data: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / name
    assert main(["--trace", str(trace)]) == 2
    trace.write_bytes(data)
    assert main(["--trace", str(trace)]) == 2
    assert [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()].count("InvalidArgument") == 2
    with pytest.raises(SystemExit) as refused:
        main(["--plot", str(tmp_path / "a.svg"), "--loads", "0.5,x"])
    assert refused.value.code == 2
