"""Facts about a pool of engines, and the conditions of its status, for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tartlet_operator.api.engine_pool import EnginePoolStatus
from tartlet_operator.pools.pod_facts import PodFacts
from tartlet_operator.pools.status import DeploymentFacts, PoolFacts

NOW = "2026-01-01T00:00:00Z"
LATER = "2026-01-01T00:01:00Z"
NONE = EnginePoolStatus()


def pod(name: str, *, ready: bool = True, terminating: bool = False, reason: str = "") -> PodFacts:
    return PodFacts(name, ready=ready, terminating=terminating, running=True, reason=reason)


def facts(replicas: int = 1, generation: int = 1, **changes: Any) -> PoolFacts:
    pods = tuple(pod(f"p-{i}") for i in range(replicas))
    return replace(
        PoolFacts(
            name="p",
            generation=generation,
            replicas=replicas,
            deployment=DeploymentFacts(generation, generation, replicas, replicas),
            pods=pods,
            engines={p.name: "ready" for p in pods},
        ),
        **changes,
    )


def conditions(s: EnginePoolStatus) -> dict[str, tuple[str, str]]:
    return {c.type: (c.status, c.reason) for c in s.conditions}
