"""The Python component for tests that launch Python programs: built if the SDK has changed since."""

from __future__ import annotations

from pathlib import Path

import pytest

from tartlet_runtime.guests.build import build
from tartlet_runtime.wasm import Compiled, default_cache_dir


@pytest.fixture(scope="session")
def cache_dir() -> Path:
    """Where set-up put the component; tests share it, because building it takes a minute."""
    return default_cache_dir()


@pytest.fixture(scope="session")
def python_component(cache_dir: Path) -> Compiled:
    """The generic Python guest, up to date."""
    return build(cache_dir)
