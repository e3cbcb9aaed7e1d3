"""The tests that `retries.toml` names: those whose failure is forgiven, and those that are never run again."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).with_name("retries.toml")
MAX_FLAKY: Final = 5
MIN_REASON_WORDS: Final = 4
_TABLES: Final = {"flaky", "never"}


class BadExceptions(ValueError):
    """The file breaks a rule; the message names the rule and the test."""


@dataclass(frozen=True, slots=True)
class Exceptions:
    """Tests that are treated unlike others.

    Attributes:
        flaky: Node ids of tests whose failure is printed and forgiven, each with the reason.
        never: Beginnings of node ids of tests that are not run again after a failure, each with the reason.
    """

    flaky: Mapping[str, str] = field(default_factory=dict)
    never: Mapping[str, str] = field(default_factory=dict)

    def forgives(self, test: str) -> bool:
        """Whether the failure of a test is forgiven. A name without parameters stands for all its parameters."""
        return test in self.flaky or test.partition("[")[0] in self.flaky

    def runs_again(self, test: str) -> bool:
        """Whether a failed test is run a second time."""
        return not any(test.startswith(start) for start in self.never)


def read(file: Path = FILE) -> Exceptions:
    """Reads the file.

    Raises:
        BadExceptions: It names more than `MAX_FLAKY` flaky tests, a test without a reason, or an unknown table.
    """
    tables = tomllib.loads(file.read_text())
    if unknown := tables.keys() - _TABLES:
        raise BadExceptions(f"{file.name}: unknown table {min(unknown)!r}; there are {sorted(_TABLES)}")
    found = Exceptions(tables.get("flaky", {}), tables.get("never", {}))
    if len(found.flaky) > MAX_FLAKY:
        raise BadExceptions(f"{file.name}: {len(found.flaky)} flaky tests, at most {MAX_FLAKY}: mend one first")
    for test, reason in {**found.flaky, **found.never}.items():
        if len(str(reason).split()) < MIN_REASON_WORDS:
            raise BadExceptions(f"{file.name}: {test} needs a reason of at least {MIN_REASON_WORDS} words")
    return found
