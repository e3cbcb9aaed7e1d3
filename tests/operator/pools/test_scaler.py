"""How the scaler gathers a pool's work from what control says, and what it writes."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from tartlet_common.clock import ManualClock
from tartlet_operator.api.autoscaling import Autoscaling
from tartlet_operator.api.events import ObjectEvent
from tartlet_operator.api.meta import Key
from tartlet_operator.api.reasons import EventReason
from tartlet_operator.cluster.kube import ApiError
from tartlet_operator.machinery.context import ControlView, Work
from tartlet_operator.machinery.store import InferletSeen, PoolSeen, RunSeen, Store
from tartlet_operator.pools.scaler import Scaler

POOL, RUN = Key("EnginePool", "ns", "p"), Key("InferletRun", "ns", "r")
SCALING = Autoscaling(min_replicas=0, max_replicas=4, scale_down_seconds=3)


@dataclass
class Played:
    """A namespace with one scaled pool, whose API server takes every number unless `refuses`."""

    replicas: int = 1
    refuses: bool = False
    events: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock, self.store, self.view = ManualClock(start=100.0), Store(), ControlView(engines={})
        self.seen()
        self.store.inferlets[Key("Inferlet", "ns", "i")] = InferletSeen("", "p", "", "", ready=True, runnable=False)
        ctx: Any = SimpleNamespace(clock=self.clock, store=self.store, view=self.view, api=self, recorder=self)
        self.scaler = Scaler(ctx)

    def seen(self) -> None:
        """Show the pool as the operator's reconcile leaves it."""
        empty = self.replicas == 0
        self.store.pools[POOL] = PoolSeen(
            "p", "m", ready=not empty, empty=empty, scaling=SCALING, replicas=self.replicas, uid="u"
        )

    def run_waits(self) -> None:
        self.store.saw_run(RUN, RunSeen("i", "Pending", held=True))

    async def scale_pool(self, key: Key, replicas: int) -> None:
        assert key == POOL
        if self.refuses:
            raise ApiError(503, "Unreachable", "")
        self.replicas = replicas

    def post(self, key: Key, uid: str, event: ObjectEvent) -> None:
        assert (key, uid, event.reason) == (POOL, "u", EventReason.POOL_SCALED)
        self.events.append(event.message)

    async def second(self, **work: Work) -> int:
        """Let control tell the engines' work, a second after the last time; return the replicas then."""
        self.clock.advance(1.0)
        self.view.work, self.view.told_s = {f"ns/{name}": each for name, each in work.items()}, self.clock.now()
        return await self.looked()

    async def quiet_second(self) -> int:
        """Let a second pass in which control has nothing new to tell; return the replicas then."""
        self.clock.advance(1.0)
        return await self.looked()

    async def looked(self) -> int:
        """Let the scaler look; return the replicas then."""
        await self.scaler.once()
        self.seen()
        return self.replicas


def work(waiting_s: float = 0.0, device_s: float = 0.0, programs: int = 0, pool: str = "ns/p") -> Work:
    return Work(pool, waiting_s, device_s, programs)


async def test_the_work_of_a_pools_own_engines_is_added_up() -> None:
    it = Played()
    assert await it.second(a=work(1.2, programs=3), b=work(1.5, programs=1), c=work(9.0, pool="ns/other")) == 3
    assert it.events == ["1 -> 3: 2.7 s of device time wait, programs: 4"]


async def test_busy_engines_are_told_by_the_device_time_that_they_used_since_before() -> None:
    it = Played(replicas=2)
    for second in range(10):
        used = float(second)
        assert await it.second(a=work(device_s=50 + used, programs=1), b=work(device_s=used, programs=1)) == 2
    for _ in range(5):
        last = await it.second(a=work(device_s=60.0, programs=1), b=work(device_s=10.0, programs=1))
    assert last == 1


async def test_engines_of_which_control_tells_nothing_new_are_idle() -> None:
    it = Played()
    for used in (1.0, 2.0, 3.0):
        assert await it.second(a=work(device_s=used, programs=1)) == 1
    assert await it.second(a=work(device_s=3.5)) == 1
    replicas = [await it.quiet_second() for _ in range(6)]
    assert replicas[:3] == [1, 1, 1]
    assert replicas[-1] == 0


async def test_to_zero_and_back_for_a_run_that_waits() -> None:
    it = Played()
    assert [await it.second(a=work()) for _ in range(4)] == [1, 1, 1, 0]
    assert await it.second() == 0
    it.run_waits()
    assert await it.second() == 1
    assert it.events[-1] == "0 -> 1: 0.0 s of device time wait, programs: 0, runs wait for an engine"


async def test_without_control_nothing_is_scaled_and_the_window_begins_anew() -> None:
    it = Played()
    for _ in range(3):
        await it.second(a=work())
    it.view.silent = True
    for _ in range(10):
        assert await it.second(a=work(9.0)) == 1
    it.view.silent = False
    assert [await it.second(a=work()) for _ in range(4)] == [1, 1, 1, 0]


async def test_a_refused_change_is_tried_again() -> None:
    it = Played(refuses=True)
    assert await it.second(a=work(3.0)) == 1
    assert it.events == []
    it.refuses = False
    assert await it.second(a=work(3.0)) == 3
