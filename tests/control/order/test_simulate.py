"""`tartlet simulate` and the files that it reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tartlet_control.simulation import load
from tartlet_control.simulation.__main__ import main


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
