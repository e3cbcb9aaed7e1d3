"""Recorded runs as traces: the calls that commands and answers tell of, and the way from journals to a simulation."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tartlet_common.abi import Op, u32
from tartlet_runtime.abi.commands import Command
from tartlet_runtime.timetravel.calls import Call, calls_of, waves_of
from tests.e2e.serving import environment

AGENT = """
import asyncio
from inferlet import Context

async def call(prompt, tokens):
    async with Context() as ctx:
        ctx.fill_tokens([5] * prompt)
        async for _ in ctx.generate(max_tokens=tokens, eos=False):
            pass

async def main():
    await call(600, 4)
    await asyncio.sleep(0.3)
    await asyncio.gather(call(20, 6), call(30, 5))
    async with Context() as ctx:
        ctx.fill_tokens([7] * 10)
        async for _ in ctx.generate(max_tokens=2, eos=False):
            pass
        ctx.fill_tokens([8] * 12)
        async for _ in ctx.generate(max_tokens=3, eos=False):
            pass
"""


def forward(tokens: int, queue: int = 0) -> Command:
    return Command(Op.FORWARD_TABLE, 0, 0, queue, 0, 0, 0, u32([tokens, 1, 0, *range(tokens + 1)]))


def sample(ticket: int, queue: int = 0) -> Command:
    return Command(Op.SAMPLE, 0, ticket, queue, 0, 0, 0, b"")


def calls(*turns: tuple[float, Sequence[Command], set[int]]) -> list[Call]:
    return calls_of((at, commands, frozenset(told)) for at, commands, told in turns)


def test_a_call_has_its_prompt_and_the_samples_that_were_answered() -> None:
    ahead = [forward(512), forward(88), sample(1), forward(1), sample(2), forward(1), sample(3)]
    told = calls((0.5, ahead, set()), (0.9, [], {1}), (1.2, [], {2}), (2.0, [forward(7), sample(4)], {77}))
    assert told == [Call(0.5, 1.2, 600, 2), Call(2.0, 2.0, 7, 0)], "a sample that was skipped isn't a token"


def test_calls_of_two_queues_overlap_or_follow() -> None:
    told = calls(
        (0.0, [forward(5), sample(1), forward(9, 1), sample(2, 1)], set()),
        (1.0, [], {1, 2}),
        (3.5, [forward(4, 1), sample(3, 1)], set()),
        (4.0, [], {3}),
    )
    assert [(c.prefill, c.decode) for c in told] == [(5, 1), (9, 1), (4, 1)]
    assert waves_of(told) == ([[[5, 1], [9, 1]], [[4, 1]]], [0.0, 2.5])


def tool(env: dict[str, str], *args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tartlet_cli", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)


@pytest.mark.timeout(300)
def test_recorded_runs_are_simulated(run_dir: Path, tmp_path: Path, python_component: object) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "idle.py").write_text("async def main():\n    pass\n")
    env = environment(run_dir) | {"TARTLET_RUNTIME_KEEP_JOURNALS": "true"}
    for program in ("agent.py", "idle.py"):
        ran = tool(env, "run", "--engine", "fake", "--quiet", tmp_path / program)
        assert ran.returncode == 0, ran.stderr
    journals = run_dir / "journals"
    (journals / "torn.journal").write_bytes(b"nothing")
    ran = tool(env, "journals", "trace", "--journals", journals, tmp_path / "trace.jsonl")
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"^journal of \S+ left out: the run computed nothing$", ran.stderr, re.MULTILINE), ran.stderr
    [told] = map(json.loads, (tmp_path / "trace.jsonl").read_text().splitlines())
    assert (told["name"], told["arrival_s"]) == ("agent.py", 0.0)
    waves = [[[600, 4]], [[20, 6], [30, 5]], [[10, 2]], [[13, 3]]]  # the last with a token of the answer before
    assert [sorted(wave) for wave in told["waves"]] == waves
    assert told["pauses_s"][1] == pytest.approx(0.3, abs=0.25)
    assert told["pauses_s"][1] >= 0.29
    numbers = tmp_path / "numbers.json"
    flags = ["--order", "plas", "--fixed-ms", "1000", "--prefill-us", "0", "--decode-us", "0", f"--json={numbers}"]
    ran = tool(env, "simulate", f"--journals={journals}", *flags)
    assert ran.returncode == 0, ran.stderr
    [_, plas] = json.loads(numbers.read_text())
    assert plas["mean_s"] == pytest.approx(4 + 6 + 2 + 3 + sum(told["pauses_s"]), abs=0.01)
    empty = tool(env, "simulate", "--journals", tmp_path)
    assert (empty.returncode, "InvalidArgument" in empty.stderr) == (2, True), empty.stderr
    assert tool(env, "simulate", "--journals").returncode == 2
