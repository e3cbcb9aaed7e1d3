"""How a pool is handled, and what the operator remembers of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tartlet_operator.api.common import ApiModel
from tartlet_operator.api.conditions import find
from tartlet_operator.api.engine_pool import EnginePoolStatus
from tartlet_operator.api.events import ObjectEvent
from tartlet_operator.api.meta import Key, Meta, pool_labels
from tartlet_operator.api.reasons import EventReason, Reason
from tartlet_operator.machinery.context import ControlView
from tartlet_operator.machinery.guard import Guard
from tartlet_operator.machinery.store import InferletSeen, PoolSeen, RunSeen, Store
from tartlet_operator.machinery.work_queue import WorkQueue
from tartlet_operator.machinery.worker_defaults import WorkerDefaults
from tartlet_operator.pools import reconcile as reconcile_pool
from tests.operator.objects import body

POOL, INFERLET = Key("EnginePool", "ns", "p"), Key("Inferlet", "ns", "i")
NOW = "2026-01-01T00:00:00Z"
FAKE = {"model": {"name": "m"}, "engine": {"backend": "Fake"}}


class Cluster:
    """An API server with a pool's Deployment and pods, and an instant Deployment controller."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.pods: list[dict[str, Any]] = []
        self.applied: list[str] = []
        self.finalizers: list[str] = []
        self.deleted: list[str] = []

    async def get(self, kind: str, _: str, __: str) -> dict[str, Any] | None:
        return self.objects.get(kind)

    async def apply(self, manifest: dict[str, Any]) -> dict[str, Any]:
        kind, replicas = manifest["kind"], manifest["spec"].get("replicas", 0)
        self.applied.append(kind)
        status = {"observedGeneration": 1, "replicas": replicas, "updatedReplicas": replicas}
        meta = {**manifest["metadata"], "generation": 1}
        self.objects[kind] = {**manifest, "metadata": meta, "status": status}
        return self.objects[kind]

    async def set_finalizer(self, _: Key, __: str, finalizer: str, *, there: bool) -> bool:
        self.finalizers = [f for f in self.finalizers if f != finalizer] + [finalizer] * there
        return there

    async def delete(self, _: Key, __: str, *, foreground: bool = False) -> None:
        self.deleted.append("Foreground" if foreground else "")

    async def list(self, *_: Any) -> list[dict[str, Any]]:
        return self.pods

    def pod(self, name: str) -> dict[str, Any]:
        meta = {"name": name, "namespace": "ns", "labels": pool_labels("p")}
        ready = {"type": "Ready", "status": "True"}
        self.pods.append({"metadata": meta, "status": {"phase": "Running", "conditions": [ready]}})
        return self.pods[-1]


class Operator:
    """Runs a pool's reconciles and records their writes."""

    def __init__(self) -> None:
        self.cluster, self.store, self.queue = Cluster(), Store(), WorkQueue()
        self.status, self.events = EnginePoolStatus(), [EventReason.POOL_READY]
        self.store.inferlets[INFERLET] = InferletSeen("", "", "m", "", ready=True, runnable=True)
        metrics = SimpleNamespace(failed=lambda *_: None)
        self.view = ControlView(engines={})
        self.ctx: Any = SimpleNamespace(
            api=self.cluster, store=self.store, queue=self.queue, view=self.view, metrics=metrics, now=NOW, unix_s=0.0
        )
        self.ctx.guard = Guard(cast("Any", self.cluster), "ns", "")
        self.ctx.defaults, self.ctx.write_status = WorkerDefaults("w", "Always", "c"), self._write

    async def _write(self, _: Key, __: Meta, ___: ApiModel, new: EnginePoolStatus, events: list[ObjectEvent]) -> None:
        self.status, self.events = new, [each.reason for each in events]

    async def look(self, *, deleted: bool = False, **spec: Any) -> bool:
        """Reconcile once; return whether Inferlets are queued."""
        made = body("EnginePool", "p", {**FAKE, **spec}, self.status.dump())
        made["metadata"] |= {"deletionTimestamp": NOW} if deleted else {}
        made["metadata"]["finalizers"] = self.cluster.finalizers
        self.queue._pending.clear()
        await reconcile_pool.reconcile(self.ctx, POOL, made)
        return INFERLET in self.queue._pending

    @property
    def ready(self) -> tuple[str, str]:
        found = find(self.status.conditions, "Ready")
        assert found is not None
        return found.status, found.reason


async def test_a_pool_that_was_deleted_is_observed_until_its_pods_have_gone_and_runs_nothing() -> None:
    operator = Operator()
    first = operator.cluster.pod("p-0")
    operator.view.engines = {"p-0": "ready"}
    await operator.look()
    assert operator.ready == ("True", Reason.ENGINES_READY)
    operator.cluster.applied.clear()

    assert await operator.look(deleted=True), "inferlets hear of it"
    assert operator.ready == ("False", Reason.DRAINING)
    assert operator.store.pools[POOL] == PoolSeen("p", "m", ready=False, uid="uid-p")
    first["metadata"]["deletionTimestamp"] = NOW
    operator.view.engines = {"p-0": "draining"}
    await operator.look(deleted=True)
    assert (operator.status.ready_replicas, operator.status.draining_replicas) == (0, 1)
    assert operator.events == [EventReason.ENGINE_DRAINING]
    operator.cluster.pods.clear()
    del operator.cluster.objects["Deployment"]
    await operator.look(deleted=True)
    assert (operator.status.engines, operator.status.draining_replicas) == ([], 0)
    assert operator.events == [EventReason.ENGINE_DRAINED]
    assert operator.cluster.applied == [], "nothing is made for it"


async def test_a_deleted_pool_with_programs_is_handed_to_the_garbage_collector_and_an_idle_one_is_left_alone() -> None:
    operator = Operator()
    operator.cluster.pod("p-0")
    operator.view.engines, operator.view.programs = {"p-0": "ready"}, {"elsewhere": 3}
    await operator.look()
    assert operator.cluster.finalizers == [], "deleting an idle pool waits for nobody"
    operator.view.programs = {"p-0": 1}
    await operator.look()
    assert operator.cluster.finalizers == ["tartlet.dev/drain"]
    operator.view.silent = True
    await operator.look()
    assert operator.cluster.finalizers == ["tartlet.dev/drain"], "nobody knows that its programs have ended"
    await operator.look(deleted=True)
    assert (operator.cluster.deleted, operator.cluster.finalizers) == (["Foreground"], [])
    await operator.look(deleted=True)
    assert operator.cluster.deleted == ["Foreground"]

    operator = Operator()
    operator.cluster.finalizers = ["tartlet.dev/drain", "orphan"]
    await operator.look(deleted=True)
    assert (operator.cluster.deleted, operator.cluster.finalizers) == ([], ["orphan"]), "its pods are to stay"


async def test_while_control_is_silent_a_pool_says_that_control_cannot_be_reached() -> None:
    operator = Operator()
    first = operator.cluster.pod("p-0")
    operator.view.engines = {"p-0": "ready"}
    await operator.look()
    operator.view.silent = True  # its engines' last states are still known
    first["status"]["conditions"][0]["status"] = "False"
    first["status"]["containerStatuses"] = [{"name": "worker", "started": True}]
    await operator.look()
    assert operator.ready == ("Unknown", Reason.CONTROL_UNREACHABLE)
    assert [e.state for e in operator.status.engines] == ["Unknown"]


def test_a_shared_pool_of_no_replicas_is_wanted_by_runs_of_other_namespaces() -> None:
    run, inferlet = Key("InferletRun", "other", "r"), Key("Inferlet", "other", "i")
    for shared, wanted in ((["ns/p"], True), (["ns/*"], True), (["ns/q", "third/*"], False), ([], False)):
        store = Store(shared)
        store.pools[POOL] = PoolSeen("p", "m", ready=False, empty=True)
        store.inferlets[inferlet] = InferletSeen("", "", "m", "", ready=True, runnable=False)
        store.saw_run(run, RunSeen("i", "Pending", held=True))
        assert list(store.empty_pools()) == [POOL] * wanted
    store = Store(["ns/p"])
    store.pools[POOL] = PoolSeen("p", "m", ready=False, empty=True)
    store.inferlets[inferlet] = InferletSeen("", "own", "", "", ready=True, runnable=False)
    store.saw_run(run, RunSeen("i", "Pending", held=True))
    assert not list(store.empty_pools()), "nothing stands in for a pool that is named"
    store.saw_run(run, RunSeen("i", "Pending", model="m", held=True))
    assert list(store.empty_pools()) == [POOL]
    store.pools[Key("EnginePool", "other", "own")] = PoolSeen("own", "m", ready=False)
    assert not list(store.empty_pools()), "a namespace's own pools come first"


async def test_a_pool_of_no_replicas_is_not_ready_while_a_run_waits_for_it() -> None:
    operator, run = Operator(), Key("InferletRun", "ns", "r")
    other = Key("InferletRun", "ns", "other")
    await operator.look(replicas=0)
    operator.store.saw_run(other, RunSeen("i", "Pending", model="another", held=True))
    assert list(operator.store.empty_pools()) == []
    operator.store.saw_run(run, RunSeen("i", "Pending", held=True))
    assert list(operator.store.empty_pools()) == [POOL]
    await operator.look(replicas=0)
    assert operator.ready == ("False", Reason.SCALED_TO_ZERO)
    assert list(operator.store.empty_pools()) == [], "its status says so already"
    operator.store.saw_run(run, RunSeen("i", "Running"))
    assert list(operator.store.empty_pools()) == [POOL]
    await operator.look(replicas=0)
    assert operator.ready == ("True", Reason.SCALED_TO_ZERO)


async def test_pools_are_counted_by_their_condition_and_run_programs_by_their_engines() -> None:
    operator = Operator()
    await operator.look(replicas=0)
    assert operator.ready == ("True", Reason.SCALED_TO_ZERO)
    assert operator.store.inventory()["EnginePool", "ready"] == 1
    assert not operator.store.pools[POOL].ready, "no engine takes programs"

    operator.cluster.pod("p-0")
    operator.cluster.pod("p-1")
    operator.view.engines = {"p-0": "ready"}
    assert await operator.look(replicas=2)
    assert operator.store.inventory()["EnginePool", "not_ready"] == 1
    assert operator.store.pools[POOL].ready
    operator.view.engines = {"p-0": "ready", "p-1": "ready"}
    assert not await operator.look(replicas=2), "to inferlets it is what it was"
    assert operator.store.inventory()["EnginePool", "ready"] == 1


def test_objects_may_come_while_they_are_counted() -> None:
    store = Store()

    class Growing:
        """Adds an entry during the count, as another thread would."""

        @property
        def settled(self) -> bool:
            store.pools[Key("EnginePool", "ns", f"p-{len(store.pools)}")] = PoolSeen("p", "m", ready=True)
            return True

    grows: Any = Growing()
    store.pools[POOL] = grows
    assert store.inventory() == {("EnginePool", "ready"): 1}
