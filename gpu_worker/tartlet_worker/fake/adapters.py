"""The fake engine's adapters, each of which is a function of its name alone."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tartlet_common.engine.spec import AdapterSpec
from tartlet_worker.fake.state import FakeState


@dataclass(frozen=True, slots=True)
class FakeAdapter:
    """See `tartlet_worker.engine.CheckedAdapter`."""

    spec: AdapterSpec


class FakeAdapters:
    """See `tartlet_worker.engine.LiveAdapters`. Any directory is an adapter."""

    def __init__(self, state: FakeState) -> None:
        self._state = state

    def check(self, name: str, path: Path) -> FakeAdapter:
        """See `LiveAdapters.check`."""
        return FakeAdapter(adapter_named(name))

    def load(self, checked: FakeAdapter) -> Callable[[], None]:
        """See `LiveAdapters.load`."""
        return partial(self._state.adapters.__setitem__, checked.spec.number, checked.spec)

    def remove(self, number: int) -> None:
        """See `LiveAdapters.remove`."""
        self._state.adapters.pop(number, None)


def adapter_named(name: str) -> AdapterSpec:
    """Return the adapter of a name."""
    return AdapterSpec(name, hashlib.sha256(f"fake adapter {name}".encode()).hexdigest(), 1)
