"""An object that nests deeper than Python reads: the API server takes it, and it is nobody's trouble but its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.operator.api_server import ApiServer
from tests.operator.operator_process import live

DEPTHS = (200, 600, 960, 1500, 5000)  # Python reads 985


@pytest.fixture
def pools() -> Iterator[dict[str, Any]]:
    """Specs by name; while there are such, this process reads what the operator's doesn't."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(50_000)
    yield {f"deep-{depth}": spec(depth) for depth in DEPTHS}
    sys.setrecursionlimit(before)


def spec(depth: int) -> dict[str, Any]:
    affinity: dict[str, Any] = {}
    for _ in range(depth):
        affinity = {"a": affinity}
    return {"model": {"name": "other"}, "engine": {"backend": "Fake"}, "podTemplate": {"affinity": affinity}}


async def test_pools_that_nest_too_deep_are_refused_and_keep_nobody_waiting(
    api_server: ApiServer, namespace: str, run_dir: Path, pools: dict[str, Any]
) -> None:
    source = {"source": {"inline": "async def main():\n    return 1\n"}}
    async with live(api_server, namespace, run_dir) as it:
        it.create("EnginePool", "good", {"model": {"name": "fake"}, "engine": {"backend": "Fake"}})
        await it.until_condition("EnginePool", "good", "Ready", "False", "RollingOut")
        for name, each in pools.items():  # seen in a watch
            it.create("EnginePool", name, each)
        it.create("Inferlet", "one", source)
        await it.until_condition("Inferlet", "one", "Ready")
        for name in pools:
            refused = await it.until_condition("EnginePool", name, "Ready", "False", "ReconcileFailed")
            assert "affinity" in refused["message"], refused
        it.operator.stop()
        it.operator.start()  # and in a list
        it.create("Inferlet", "two", source)
        await it.until_condition("Inferlet", "two", "Ready")
