"""The little that the operator remembers of each object it has seen, so that ten thousand fit in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from tartlet_operator.api.autoscaling import Autoscaling
from tartlet_operator.api.meta import Key


@dataclass(frozen=True, slots=True)
class PoolSeen:
    """What is remembered of an EnginePool.

    Args:
        ready: whether an engine of the pool takes programs.
        settled: whether the pool's condition `Ready` is True.
        empty: whether its spec asks for no engine.
        wanted: whether its status says that runs wait for it.
        scaling: how the operator scales the pool, if it does.
        replicas: how many engines its spec asks for.
        uid: its UID.
        unknown: whether nobody knows if an engine takes programs, because control doesn't answer.
    """

    name: str
    model: str
    ready: bool
    settled: bool = False
    empty: bool = False
    wanted: bool = False
    unknown: bool = False
    scaling: Autoscaling | None = None
    replicas: int = 1
    uid: str = ""

    @property
    def standing(self) -> tuple[str, str, bool, bool]:
        """The facts that Inferlets depend on."""
        return self.name, self.model, self.ready, self.unknown


class InferletSeen(NamedTuple):
    """What is remembered of an Inferlet."""

    fingerprint: str  # of the catalogue entry, "" while there is none
    pool: str
    model: str
    config_map: str
    ready: bool
    runnable: bool
    generation: int = 0  # the generation that the status speaks of

    @property
    def standing(self) -> tuple[bool, bool, int]:
        """The facts that runs of the Inferlet wait for."""
        return self.ready, self.runnable, self.generation


class RunSeen(NamedTuple):
    """What is remembered of an InferletRun."""

    inferlet: str
    phase: str
    expires_s: float = 0.0  # when the run is to be deleted, Unix time; 0: not yet known, or never
    model: str = ""  # of its own spec
    held: bool = False  # whether it waits for an engine


class Store:
    """Remembers objects by key.

    Args:
        shared: pools that control opens to all namespaces: NAMESPACE/POOL, or NAMESPACE/* for all of a namespace.
    """

    def __init__(self, shared: Collection[str] = ()) -> None:
        self._shared = frozenset(shared)
        self.pools: dict[Key, PoolSeen] = {}
        self.engines: dict[Key, frozenset[str]] = {}  # each pool's engines, as control names them
        self.inferlets: dict[Key, InferletSeen] = {}
        self.runs: dict[Key, RunSeen] = {}
        self._pending: set[Key] = set()  # keys of runs that wait; many more may have ended

    def forget(self, key: Key) -> None:
        """Forget an object that is gone."""
        for table in (self.pools, self.engines, self.inferlets, self.runs):
            table.pop(key, None)
        self._pending.discard(key)

    def saw_run(self, key: Key, seen: RunSeen) -> None:
        """Remember a run."""
        self.runs[key] = seen
        if seen.phase == "Pending":
            self._pending.add(key)
        else:
            self._pending.discard(key)

    def mark_unknown(self, key: Key) -> None:
        """Note that nobody knows how an object stands."""
        if key in self.pools:
            self.pools[key] = replace(self.pools[key], settled=False)
        if key in self.inferlets:
            self.inferlets[key] = self.inferlets[key]._replace(ready=False)

    def keys(self) -> Iterator[Key]:
        """Yield every object seen, pools first: the status of Inferlets depends on pools."""
        yield from list(self.pools)
        yield from list(self.inferlets)
        yield from list(self.runs)

    def pools_in(self, namespace: str) -> list[PoolSeen]:
        """Return a namespace's pools."""
        return [pool for key, pool in self.pools.items() if key.namespace == namespace]

    def inferlets_of(self, pool: Key, seen: PoolSeen) -> Iterator[Key]:
        """Yield the Inferlets whose `Runnable` may depend on a pool."""
        for key, inferlet in list(self.inferlets.items()):
            if key.namespace != pool.namespace:
                continue
            if inferlet.pool == seen.name or (not inferlet.pool and inferlet.model in ("", seen.model)):
                yield key

    def inferlets_from(self, namespace: str, config_map: str) -> Iterator[Key]:
        """Yield the Inferlets whose source is in a ConfigMap."""
        for key, inferlet in list(self.inferlets.items()):
            if key.namespace == namespace and inferlet.config_map == config_map:
                yield key

    def pending_runs(self) -> Iterator[Key]:
        """Yield the runs that wait."""
        yield from list(self._pending)

    def runs_of(self, inferlet: Key) -> Iterator[Key]:
        """Yield the runs of an Inferlet that wait."""
        for key in self.pending_runs():
            if key.namespace == inferlet.namespace and self.runs[key].inferlet == inferlet.name:
                yield key

    def wanted(self, pool: Key, seen: PoolSeen) -> bool:
        """Whether a run waits for an engine of a pool."""
        return next(self._waiting(pool, seen), None) is not None

    def waiting_runs(self) -> dict[Key, int]:
        """Return how many runs wait for an engine of each pool. Called from the exporter's thread."""
        return {key: sum(1 for _ in self._waiting(key, pool)) for key, pool in list(self.pools.items())}

    def _waiting(self, pool: Key, seen: PoolSeen) -> Iterator[Key]:
        shared = not self._shared.isdisjoint((f"{pool.namespace}/{pool.name}", f"{pool.namespace}/*"))
        for key in list(self._pending):
            run = self.runs.get(key)
            if run is None or not run.held:
                continue
            if self._wants(key, seen) if key.namespace == pool.namespace else shared and self._borrows(key, seen):
                yield key

    def _borrows(self, run: Key, pool: PoolSeen) -> bool:
        """Whether a run may use a shared pool of another namespace: its own has no pool of the model that it names."""
        inferlet = self.inferlets.get(Key("Inferlet", run.namespace, self.runs[run].inferlet))
        model = self.runs[run].model or (inferlet.model if inferlet is not None and not inferlet.pool else "")
        return model == pool.model and all(own.model != model for own in self.pools_in(run.namespace))

    def _wants(self, run: Key, pool: PoolSeen) -> bool:
        seen = self.runs[run]
        if seen.model:
            return seen.model == pool.model
        inferlet = self.inferlets.get(Key("Inferlet", run.namespace, seen.inferlet))
        if inferlet is None:
            return False
        return inferlet.pool == pool.name if inferlet.pool else inferlet.model in ("", pool.model)

    def empty_pools(self) -> Iterator[Key]:
        """Yield the pools without engines whose status should change: whether runs wait for them."""
        for key, pool in list(self.pools.items()):
            if pool.empty and self.wanted(key, pool) != pool.wanted:
                yield key

    def inventory(self) -> Counter[tuple[str, str]]:
        """Count the objects by kind and state. Called from the exporter's thread."""
        out: Counter[tuple[str, str]] = Counter()
        for pool in list(self.pools.values()):
            out["EnginePool", "ready" if pool.settled else "not_ready"] += 1
        for inferlet in list(self.inferlets.values()):
            out["Inferlet", "ready" if inferlet.ready else "not_ready"] += 1
        for run in list(self.runs.values()):
            out["InferletRun", run.phase.lower()] += 1
        return out
