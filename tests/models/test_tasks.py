"""The generated problems: right, repeatable, and split so that training never sees what evaluation asks."""

from __future__ import annotations

import itertools
import json
import re
from random import Random

import pytest

from models.training import tasks
from models.training.packing import conversations
from models.training.registry import TASKS, is_held_out, problems
from models.training.tasks import Dialogue, Turn


def some(task: str, count: int, *, seed: int = 0, held_out: bool = False) -> list[Dialogue]:
    """A few problems of one task."""
    return list(itertools.islice(problems(task, Random(seed), held_out=held_out), count))


@pytest.mark.parametrize("task", TASKS)
def test_a_seed_fixes_the_problems(task: str) -> None:
    assert some(task, 50, seed=3) == some(task, 50, seed=3)
    assert some(task, 50, seed=3) != some(task, 50, seed=4)


@pytest.mark.parametrize("task", TASKS)
def test_the_two_sides_of_the_split_share_no_problem(task: str) -> None:
    trained = {d.key for d in some(task, 400)}
    evaluated = {d.key for d in some(task, 25, held_out=True)}
    assert evaluated
    assert trained.isdisjoint(evaluated)


def test_training_conversations_hold_no_held_out_sum() -> None:
    prompts = [c[1].text for c in itertools.islice(conversations(Random(5)), 4000)]
    asked = [re.search(r"(\d+) ?\+ ?(\d+)|Add (\d+) and (\d+)", prompt) for prompt in prompts]
    pairs = [sorted(int(digits) for digits in match.groups() if digits) for match in asked if match]
    assert len(pairs) > 200
    assert not [pair for pair in pairs if is_held_out(f"add {pair[0]} {pair[1]}")]


def test_about_a_sixteenth_is_held_out() -> None:
    share = sum(is_held_out(f"add {a} {b}") for a in range(100) for b in range(100)) / 10_000
    assert 0.05 < share < 0.075


def test_swapped_operands_and_other_wordings_are_the_same_problem() -> None:
    keys = {
        frozenset(map(int, re.findall(r"\d+", d.turns[0].prompt))): d.key
        for task in ("add_bare", "add_chat")
        for d in some(task, 500)
    }
    for operands, key in keys.items():
        low, high = min(operands), max(operands)
        assert key == f"add {low} {high}"


def test_the_scratchpad_carries() -> None:
    assert tasks.scratchpad(374, 588) == "4+8+0=12 7+8+1=16 3+5+1=09 so 962"
    assert tasks.scratchpad(5, 12) == "5+2+0=07 0+1+0=01 so 17"
    assert tasks.scratchpad(999, 1).endswith(" so 1000")


def test_tool_calls_are_json_with_the_questions_entity() -> None:
    for dialogue in some("compare", 50):
        first, second = (json.loads(turn.answer)["arguments"]["entity"] for turn in dialogue.turns[:2])
        question = dialogue.turns[0].prompt
        assert question.index(first) <= question.rindex(second)


def test_filled_schemas_have_the_schemas_keys_in_order_and_types() -> None:
    for dialogue in some("fill_schema", 100):
        turn = dialogue.turns[0]
        match = re.search(r"\{.*?\}", turn.prompt)
        assert match
        schema, filled = json.loads(match[0]), json.loads(turn.answer)
        assert list(schema) == list(filled)
        assert all(isinstance(filled[k], int if kind == "integer" else str) for k, kind in schema.items())


def test_sorting_keeps_the_numbers() -> None:
    for dialogue in some("sort", 100):
        turn = dialogue.turns[0]
        given, answered = (list(map(int, re.findall(r"\d+", text))) for text in (turn.prompt, turn.answer))
        assert answered == sorted(given)


def test_outlines_are_judged_by_count_numbering_subject_and_repetition() -> None:
    turn = Turn(tasks.ask("Outline 2 points about tea."), "1. The history of tea.\n2. The uses of tea.")
    accepts = TASKS["outline"].accepts
    assert accepts
    assert accepts(turn, turn.answer.replace("uses", "costs"))
    assert not accepts(turn, "1. The history of tea.")
    assert not accepts(turn, "1. The history of tea.\n1. The uses of tea.")
    assert not accepts(turn, "1. The history of tea.\n2. The history of tea.")
    assert not accepts(turn, "1. The history of tea.\n2. The uses of rain.")


@pytest.mark.parametrize("task", [name for name, task in TASKS.items() if task.accepts])
def test_every_generated_answer_is_accepted(task: str) -> None:
    accepts = TASKS[task].accepts
    assert accepts
    assert all(accepts(turn, turn.answer) for d in some(task, 200) for turn in d.turns)
