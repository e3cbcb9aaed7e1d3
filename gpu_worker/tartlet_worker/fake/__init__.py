"""A small real engine without torch: it keeps the rules of a backend, for tests and for a first look without a model.

Belongs here: the fake engine, its options and the function that stands in for a model's weights. Never here: torch,
and shortcuts that a real engine could not take.
"""

from __future__ import annotations

from tartlet_worker.fake.engine import FakeEngine
from tartlet_worker.fake.state import FakeOptions

__all__ = ["FakeEngine", "FakeOptions"]
