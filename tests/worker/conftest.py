"""Builds the C kernels where there is a compiler, so that what can be tested is."""

from __future__ import annotations

import pytest

from tartlet_worker.kernels.build import NotBuilt, build


@pytest.fixture(scope="session", autouse=True)
def _kernels() -> None:
    try:
        build()
    except NotBuilt:
        return
