"""Says that a test lacks a server or a tool: in CI the test fails, elsewhere it is skipped."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NoReturn

import pytest

OPTIONAL = "TARTLET_CI_CLUSTER"
"""With the value `optional`, tests are skipped in CI too: for machines that can have no cluster."""


def must_have(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a test that lacks something fails: in CI, unless `TARTLET_CI_CLUSTER=optional` is set."""
    return bool(environment.get("CI")) and environment.get(OPTIONAL) != "optional"


def lacking(why: str, environment: Mapping[str, str] = os.environ) -> NoReturn:
    """Ends the test that lacks something.

    Args:
        why: The thing that is missing, and how to get it.
        environment: Says whether this is CI.
    """
    if must_have(environment):
        pytest.fail(f"{why} (in CI this is a failure; {OPTIONAL}=optional makes it a skip)", pytrace=False)
    pytest.skip(why)
