"""Programs of `inferlets/std` on a real engine: a swarm, an agent whose client calls the tools, and speculation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import tartlet
from tests.e2e.serving import Serving, client_of, serving, until_nothing_is_held
from tests.run_directory import run_directory

REPO = Path(__file__).parents[3]
STD = REPO / "inferlets" / "std"


@pytest.fixture(scope="module")
def demo() -> Iterator[Serving]:
    with (
        run_directory() as directory,
        serving(directory, "--model", str(REPO / "models" / "demo"), engine="torch") as running,
    ):
        yield running


async def test_a_swarm_of_programs_agrees_on_an_answer(demo: Serving) -> None:
    async with client_of(demo) as client:
        task = ["--task", "25+17=", "--members", "3", "--max-tokens", "16"]
        run = await client.run(tartlet.Source.from_file(STD / "swarm.py"), task)
        (message,) = [json.loads(event.text) async for event in run if isinstance(event, tartlet.Message)]
        assert run.ended is not None
        assert run.ended.success, run.ended.error
        assert sum(message["votes"].values()) == 3
        winner, _, count = (run.ended.result or "").partition(" (")
        assert message["votes"][winner] == max(message["votes"].values())
        assert count.endswith(" of 3 votes)")
        theirs = {info.program_id: info for info in await client.list(ended=True) if info.parent == run.program_id}
        assert set(theirs) == set(message["members"])
        assert {info.state for info in theirs.values()} == {"succeeded"}
        await until_nothing_is_held(client)


async def test_an_agent_answers_with_what_its_client_s_tools_say(demo: Serving) -> None:
    prices = {"Karo": "27", "Zuber": "45"}
    async with client_of(demo) as client:
        question = ["--question", "Compare the price of Karo and Zuber."]
        run = await client.run(tartlet.Source.from_file(STD / "client_tools.py"), question)
        asked = []
        async for event in run:
            if isinstance(event, tartlet.Message):
                asked.append(json.loads(event.text)["arguments"]["entity"])
                await client.send(run.program_id, prices[asked[-1]])
        assert run.ended is not None
        assert asked == ["Karo", "Zuber"]
        assert "27" in (run.ended.result or "")
        assert "45" in (run.ended.result or "")


@pytest.mark.parametrize("name", ["prompt_lookup.py", "jacobi.py"])
async def test_drafts_give_the_greedy_text_in_fewer_steps_of_the_engine(demo: Serving, name: str) -> None:
    prompt = ["--prompt", "374+588=4+8+0=12 7+8+1=16 3+5+1=09 so 962. 374+588=", "--max-tokens", "30"]
    texts, steps = {}, {}
    async with client_of(demo) as client:
        for program in ("text_completion.py", name):
            before = (await client.state()).control["engines"][0]["steps"]
            run = await client.run(tartlet.Source.from_file(STD / program), prompt)
            text = "".join([event.data.decode() async for event in run if isinstance(event, tartlet.Stdout)])
            assert run.ended is not None
            assert run.ended.success, run.ended.error
            await until_nothing_is_held(client)
            texts[program] = text.splitlines()[0].removesuffix("<|end|>")
            steps[program] = (await client.state()).control["engines"][0]["steps"] - before
    assert texts[name] == texts["text_completion.py"]
    assert len(texts[name]) >= 20
    assert steps[name] * (2 if name == "prompt_lookup.py" else 1) < steps["text_completion.py"]
