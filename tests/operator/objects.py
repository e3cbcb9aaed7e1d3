"""Bodies of custom resources for tests, with what the API server fills in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tartlet_operator.api import RESOURCES, EnginePool, Inferlet, InferletRun
from tartlet_operator.api.common import API_VERSION
from tartlet_operator.api.meta import Meta


def body(kind: str, name: str, spec: dict[str, Any], status: dict[str, Any] | None = None) -> dict[str, Any]:
    out: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}", "generation": 1, "resourceVersion": "1"},
        "spec": spec,
    }
    return out | ({"status": status} if status is not None else {})


def manifest(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


def path(namespace: str, kind: str, name: str = "") -> str:
    plural = next(r.plural for r in RESOURCES if r.kind == kind)
    return f"/apis/{API_VERSION}/namespaces/{namespace}/{plural}" + (f"/{name}" if name else "")


def pool(**spec: Any) -> EnginePool:
    return EnginePool.model_validate(body("EnginePool", "p", {"model": {"name": "m"}, **spec}))


def inferlet(**spec: Any) -> Inferlet:
    return Inferlet.model_validate(body("Inferlet", "i", {"source": {"inline": "pass"}, **spec}))


def run(**spec: Any) -> InferletRun:
    return InferletRun.model_validate(body("InferletRun", "r", {"inferlet": "i", **spec}))


META = Meta("ns", "p", "uid-p", 1, deleting=False)


async def until(holds: Callable[[], object], timeout_s: float = 5.0) -> None:
    """Wait until `holds` is true."""
    async with asyncio.timeout(timeout_s):
        while not holds():  # noqa: ASYNC110 - what it waits for tells nobody
            await asyncio.sleep(0.002)
