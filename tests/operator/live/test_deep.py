"""Objects that nest deeper than Python reads: the API server prunes them, or the operator reads them all the same."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.operator.api_server import ApiServer
from tests.operator.operator_process import live

RECURSION_LIMIT = 50_000


def reads(depth: int) -> bool:
    """Whether this Python's JSON reads so deep a value when it may: from 3.12 on, C code has a limit of its own."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(RECURSION_LIMIT)
    try:
        json.loads("[" * depth + "]" * depth)
    except RecursionError:
        return False
    finally:
        sys.setrecursionlimit(before)
    return True


DEEPEST = (1500, 5000)
DEPTHS = [
    pytest.param((200, 600, 960), id="deep"),  # Python reads 985, unless it is told to
    pytest.param(
        DEEPEST,
        id="deepest",
        marks=pytest.mark.skipif(
            not reads(max(DEEPEST)),
            reason=f"JSON of Python {sys.version_info.major}.{sys.version_info.minor} nests less deep than "
            f"{max(DEEPEST)} levels; docs/adr/0024 has the operator's limit there",
        ),
    ),
]
SOURCE = {"source": {"inline": "async def main():\n    return 1\n"}}


@pytest.fixture(autouse=True)
def deep() -> Iterator[None]:
    """While there are such objects, this process writes and reads them."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(RECURSION_LIMIT)
    yield
    sys.setrecursionlimit(before)


def nested(depth: int, field: str) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {field: value}
    return value


def depth_of(value: Any) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(depth_of, parts), default=0)


def spec(depth: int) -> dict[str, Any]:
    """A pool with something deep wherever a pod's pieces go."""
    bomb = nested(depth, "a")
    return {
        "model": {"name": "other"},
        "engine": {"backend": "Fake"},
        "tolerations": [{"operator": "Exists", **bomb}],
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": bomb}
        ],
        "podTemplate": {
            "affinity": bomb | {"nodeAffinity": bomb},
            "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name", **bomb}}}],
            "volumes": [{"name": "v", "emptyDir": bomb}],
            "volumeMounts": [{"name": "v", "mountPath": "/v", **bomb}],
        },
    }


@pytest.mark.parametrize("depths", DEPTHS)
async def test_deeply_nested_pools_are_pruned_and_handled(
    api_server: ApiServer, namespace: str, run_dir: Path, depths: tuple[int, ...]
) -> None:
    async with live(api_server, namespace, run_dir) as it:
        for depth in depths:
            it.create("EnginePool", f"deep-{depth}", spec(depth))
            assert depth_of(it.get("EnginePool", f"deep-{depth}")["spec"]) < 12
        for depth in depths:
            await it.until_condition("EnginePool", f"deep-{depth}", "Ready", "False", "RollingOut")
        it.create("Inferlet", "one", SOURCE)
        await it.until_condition("Inferlet", "one", "Ready")


@pytest.mark.parametrize("depths", DEPTHS)
async def test_deeply_nested_managed_fields_block_no_other_object(
    api_server: ApiServer, namespace: str, run_dir: Path, depths: tuple[int, ...]
) -> None:
    """The API server keeps these as they come, whatever the object's kind."""
    async with live(api_server, namespace, run_dir) as it:
        for depth in depths:  # seen in a watch
            fields = [
                {
                    "manager": "somebody",
                    "operation": "Update",
                    "apiVersion": "tartlet.dev/v1alpha1",
                    "fieldsType": "FieldsV1",
                    "fieldsV1": nested(depth, "f:a"),
                }
            ]
            made = api_server.call(
                "POST",
                f"/apis/tartlet.dev/v1alpha1/namespaces/{namespace}/inferlets",
                {
                    "apiVersion": "tartlet.dev/v1alpha1",
                    "kind": "Inferlet",
                    "metadata": {"name": f"deep-{depth}", "managedFields": fields},
                    "spec": SOURCE,
                },
            )
            assert depth_of(made["metadata"]["managedFields"]) > depth
        for depth in depths:
            await it.until_condition("Inferlet", f"deep-{depth}", "Ready")
        it.operator.stop()
        it.operator.start()  # and in a list
        it.create("Inferlet", "two", SOURCE)
        await it.until_condition("Inferlet", "two", "Ready")
