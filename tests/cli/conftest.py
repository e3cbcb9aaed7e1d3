"""One server for the tests of a module that leave it as it is."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.serving import Serving, serving


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    """A server that the module's tests share."""
    directory = Path(tempfile.mkdtemp(prefix="tt-"))
    try:
        with serving(directory) as running:
            yield running
    finally:
        shutil.rmtree(directory, ignore_errors=True)
