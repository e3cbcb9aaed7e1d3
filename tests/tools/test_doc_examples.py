"""Examples in docstrings. Those of the SDK are programs and have their own test."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("services", "gpu_worker", "operator")


def modules() -> list[str]:
    """Returns the modules with examples."""
    files = [(place, file) for place in PLACES for file in (ROOT / place).rglob("*.py") if ">>> " in file.read_text()]
    return sorted(".".join(file.relative_to(ROOT / place).with_suffix("").parts) for place, file in files)


@pytest.mark.parametrize("module", modules())
def test_an_example_holds(module: str) -> None:
    failed, attempted = doctest.testmod(importlib.import_module(module))
    assert (failed, attempted > 0) == (0, True)
