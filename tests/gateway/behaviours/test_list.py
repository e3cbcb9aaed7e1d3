"""`docs/clients.md` is true: each of its 60 behaviours names tests that exist, and refusals are tested as such."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parents[1] / "docs/clients.md"
COUNT = 60
REFUSALS = re.compile(r"\b4\d\d\b|BadRequestError|NotFoundError")
"""How a test asks for a refusal."""


class Behaviour(NamedTuple):
    number: int
    text: str
    tests: list[tuple[str, str]]


BEHAVIOURS = [
    Behaviour(int(number), text, re.findall(r"`([\w/]+\.py)::(test_\w+)`", tests))
    for number, text, tests in re.findall(r"^\| (\d+) \| (.*) \| (.*) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
]


@lru_cache
def sources_in(file: str) -> dict[str, str]:
    """Source of each test of a file, with its decorators, by name."""
    text = (TESTS / file).read_text("utf-8")
    found = (n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    lines = text.splitlines()
    return {
        n.name: "\n".join(lines[min([n.lineno, *(d.lineno for d in n.decorator_list)]) - 1 : n.end_lineno])
        for n in found
    }


def test_the_page_has_all_behaviours() -> None:
    assert [behaviour.number for behaviour in BEHAVIOURS] == list(range(1, COUNT + 1))


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: str(behaviour.number))
def test_a_behaviour_is_tested(behaviour: Behaviour) -> None:
    assert behaviour.tests
    for file, name in behaviour.tests:
        assert name in sources_in(file), f"{file} has no {name}"
    if "*Refused:*" in behaviour.text or ": 4" in behaviour.text:
        assert any(REFUSALS.search(sources_in(file)[name]) for file, name in behaviour.tests)
