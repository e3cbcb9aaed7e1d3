"""The generated dialogues of chats that were given tools, and of chats that are long."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from random import Random

import pytest
from tokenizers import Tokenizer

from models.training.checkpoint import MAX_LENGTH
from models.training.long_chats import LongChat
from models.training.packing import IGNORED, long_rows
from models.training.registry import is_held_out, problems
from models.training.tasks import Dialogue
from models.training.text import BEGIN_ID
from models.training.tool_tasks import UNFIT
from models.training.toolbox import CLOCKS, LOOKUPS, UNASKED, WEATHERS

CALLING = ("told_call", "told_lookup", "told_place", "told_compare")


def some(task: str, count: int) -> list[Dialogue]:
    """A few problems of one task."""
    return list(itertools.islice(problems(task, Random(2), held_out=False), count))


def told_tools(opening: str) -> dict[str, list[str]]:
    """The parameters of each tool that a chat begins with, by name."""
    found = re.findall(r"([\w.]+)\(([^)]*)\)", opening)
    return {name: [parameter for parameter in parameters.split(", ") if parameter] for name, parameters in found}


@pytest.mark.parametrize("task", CALLING)
def test_a_call_names_a_tool_of_the_chat_with_its_parameters_in_order(task: str) -> None:
    names = set()
    for dialogue in some(task, 200):
        tools = told_tools(dialogue.opening)
        for turn in dialogue.turns[:-1]:
            call = json.loads(turn.answer)
            given = list(call["arguments"])
            assert given == tools[call["name"]][: len(given)]
            assert set(tools[call["name"]][len(given) :]) <= set(UNASKED)
            assert all(str(value) in dialogue.turns[0].prompt for value in call["arguments"].values())
            names.add(call["name"])
        assert not dialogue.turns[-1].answer.startswith("{")
    assert len(names) >= 4


def test_the_answer_holds_the_tool_s_result() -> None:
    for dialogue in some("told_call", 100):
        given = dialogue.turns[1].prompt.removeprefix("<|tool|>").removesuffix("<|assistant|>")
        result = json.loads(given)["result"] if given.startswith("{") else given
        assert dialogue.turns[1].answer.endswith(f" is {result}.")


def test_where_no_tool_fits_none_is_called() -> None:
    answering = {" weather in ": WEATHERS, " time ": CLOCKS, " higher ": LOOKUPS}
    seen = set()
    for dialogue in some("told_unfit", 200):
        assert [turn.answer for turn in dialogue.turns] == [UNFIT]
        tools = told_tools(dialogue.opening)
        assert tools
        for words, names in answering.items():
            if words in dialogue.turns[0].prompt:
                assert tools.keys().isdisjoint(names)
                seen.add(words)
    assert seen == answering.keys()


def test_a_long_chat_is_of_one_side_of_the_split_and_asks_for_codes_that_it_told() -> None:
    for held_out in (False, True):
        for seed in range(5):
            parts = LongChat(Random(seed), held_out=held_out).parts()
            said, recalled = "", 0
            for part in itertools.islice(parts, 60):
                key = part.dialogue.key
                if key.startswith("recall "):
                    _, name, code = key.split()
                    assert is_held_out(key) == held_out or f"code of {name} is" in part.dialogue.turns[0].prompt
                    told = said + part.dialogue.turns[0].prompt
                    assert f"code of {name} is {code}." in told.replace("The code", "code")
                    recalled += 1
                elif not key.startswith("remember "):
                    assert is_held_out(key) == held_out
                said += "".join(turn.prompt + turn.answer for turn in part.dialogue.turns)
            assert recalled >= 5


def test_a_long_row_is_one_chat_as_long_as_the_window(demo_directory: Path) -> None:
    rows = long_rows(Tokenizer.from_file(str(demo_directory / "tokenizer.json")), Random(4), 3, MAX_LENGTH)
    assert (rows.tokens[:, 0] == BEGIN_ID).all()
    assert not (rows.tokens[:, 1:] == BEGIN_ID).any()
    assert (rows.documents == 1).all()
    learned = rows.labels[:, :-1] != IGNORED
    assert (rows.labels[:, :-1][learned] == rows.tokens[:, 1:][learned]).all()
    assert learned[:, MAX_LENGTH // 2 :].any(axis=1).all()
