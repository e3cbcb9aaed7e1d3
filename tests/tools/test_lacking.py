"""A test that lacks a server: skipped at home, failed in CI."""

from __future__ import annotations

import pytest

from tests.lacking import lacking


@pytest.mark.parametrize("environment", [{}, {"CI": ""}, {"CI": "true", "TARTLET_CI_CLUSTER": "optional"}])
def test_it_is_skipped_outside_ci(environment: dict[str, str]) -> None:
    with pytest.raises(pytest.skip.Exception):
        lacking("no server", environment)


def test_it_fails_in_ci() -> None:
    with pytest.raises(pytest.fail.Exception):
        lacking("no server", {"CI": "true"})
