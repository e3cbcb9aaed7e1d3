"""A server for the tests of a module that leave it unchanged."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.serving import Serving, serving
from tests.run_directory import run_directory


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    """A server that the tests of the module share."""
    with run_directory() as directory, serving(directory) as running:
        yield running
