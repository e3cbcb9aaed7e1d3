"""Fixtures of the demo model's tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def demo_directory() -> Path:
    """The committed checkpoint."""
    return Path(__file__).resolve().parents[2] / "models" / "demo"
