"""The work queue has one entry for each object, keeps the newest body, and never hands out an object twice at once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

from tartlet_operator.api.meta import Key
from tartlet_operator.cluster.lease import Seen, may_take, observe
from tartlet_operator.machinery.handler import retry_s
from tartlet_operator.machinery.work_queue import WorkQueue
from tests.operator.objects import until

A, B = Key("Inferlet", "ns", "a"), Key("Inferlet", "ns", "b")


class Workers:
    def __init__(self, queue: WorkQueue, n: int = 3, kind: str = "Inferlet") -> None:
        self.queue = queue
        self.seen: list[tuple[Key, Any]] = []
        self.at_once: Counter[Key] = Counter()
        self.most = 0
        self.again: dict[Key, float | None] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.tasks = [asyncio.ensure_future(queue.work(kind, self.handle)) for _ in range(n)]

    async def handle(self, key: Key, body: Any) -> float | None:
        self.at_once[key] += 1
        self.most = max(self.most, self.at_once[key])
        await asyncio.sleep(0)
        await self.gate.wait()
        self.at_once[key] -= 1
        self.seen.append((key, body))
        return self.again.pop(key, None)

    async def idle(self) -> None:
        await until(lambda: self.queue.idle)

    async def stop(self) -> None:
        self.queue.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def test_namespaces_take_turns() -> None:
    queue = WorkQueue()
    many, few = ([Key("Inferlet", namespace, f"{n}") for n in range(5)] for namespace in ("many", "few"))
    for key in (*many, *few[:2]):
        queue.add(key)
    workers = Workers(queue, 1)
    await workers.idle()
    assert [key for key, _ in workers.seen] == [many[0], few[0], many[1], few[1], *many[2:]]
    await workers.stop()


async def test_the_newest_body_wins_and_one_object_is_never_worked_on_twice_at_once() -> None:
    queue = WorkQueue()
    workers = Workers(queue)
    workers.gate.clear()
    queue.add(A, {"n": 1})
    await asyncio.sleep(0.01)  # a worker has it
    for n in range(2, 6):
        queue.add(A, {"n": n})
    queue.add(A)  # "look again" keeps the body that waits
    workers.gate.set()
    await workers.idle()
    assert workers.seen == [(A, {"n": 1}), (A, {"n": 5})]
    assert workers.most == 1
    await workers.stop()


async def test_a_deleted_object_keeps_no_waiting_body_even_while_it_is_handled() -> None:
    queue = WorkQueue()
    workers = Workers(queue)
    workers.gate.clear()
    queue.add(A, {"n": 1})
    await asyncio.sleep(0.01)  # a worker has it
    queue.add(A, {"n": 2})
    queue.add_without_body(A)
    queue.add(B, {"n": 1})
    queue.add_without_body(B)
    workers.gate.set()
    await workers.idle()
    assert [body for key, body in workers.seen if key == A] == [{"n": 1}, None]
    assert [body for key, body in workers.seen if key == B] == [None]
    await workers.stop()


async def test_under_load_every_object_is_seen_in_its_last_state() -> None:
    queue, rng = WorkQueue(), random.Random(1)
    workers = Workers(queue, n=12)
    last: dict[Key, int] = {}
    for n in range(2000):
        key = Key("Inferlet", "ns", str(rng.randrange(50)))
        last[key] = n
        queue.add(key, {"n": n})
        if n % 20 == 0:
            await asyncio.sleep(0)
    await workers.idle()
    assert workers.most == 1
    assert {key: body["n"] for key, body in workers.seen} == last
    assert len(workers.seen) < 2000, "events coalesce"
    await workers.stop()


async def test_a_timer_fires_on_time_and_an_event_comes_first() -> None:
    queue = WorkQueue()
    workers = Workers(queue)
    queue.add_after(A, 0.5)  # a machine that stands still for a moment is no reason to fail
    queue.add_after(A, 30.0)  # the earliest counts
    queue.add_after(B, 30.0)
    queue.add(B)
    await workers.idle()
    assert [key for key, _ in workers.seen] == [B]
    await until(lambda: len(workers.seen) >= 2)
    await asyncio.sleep(0.02)
    assert [key for key, _ in workers.seen] == [B, A]
    await workers.stop()


async def test_a_handlers_answer_in_seconds_queues_the_object_again() -> None:
    queue = WorkQueue()
    workers = Workers(queue)
    workers.again[A] = 0.01
    queue.add(A)
    await until(lambda: len(workers.seen) >= 2)
    await workers.stop()


async def test_room_waits_for_workers() -> None:
    queue = WorkQueue()
    queue.add(A)
    queue.add(B)
    queue.add(Key("EnginePool", "ns", "p"))
    assert not await queue.room("Inferlet", 2, 0.01)
    assert await queue.room("EnginePool", 2, 0.01), "the others that wait are no pools"
    workers = Workers(queue)
    assert await queue.room("Inferlet", 1, 5)
    await workers.stop()


def test_retries_are_bounded() -> None:
    waits = [retry_s(n, 5) for n in range(1, 8)]
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, None, None]


def test_a_lease_is_taken_when_it_is_free_or_expired_by_our_own_clock() -> None:
    lease = {"spec": {"holderIdentity": "other", "renewTime": "t1"}}
    seen = observe(None, lease, 100.0)
    assert seen == Seen("other", "t1", 100.0)
    assert not may_take(seen, "me", 15.0, 111.9)
    assert may_take(observe(seen, lease, 112.0), "me", 15.0, 112.0)
    renewed = observe(seen, {"spec": {"holderIdentity": "other", "renewTime": "t2"}}, 111.0)
    assert not may_take(renewed, "me", 15.0, 122.9)
    assert may_take(observe(None, {"spec": {"holderIdentity": ""}}, 0.0), "me", 15.0, 0.0)
    assert may_take(observe(None, {"spec": {"holderIdentity": "me"}}, 0.0), "me", 15.0, 0.0)


async def test_kinds_do_not_wait_for_each_other() -> None:
    queue, pool = WorkQueue(), Key("EnginePool", "ns", "p")
    inferlets, pools = Workers(queue, n=1), Workers(queue, n=1, kind="EnginePool")
    inferlets.gate.clear()
    for key in (A, B, pool):
        queue.add(key)
    await until(lambda: pools.seen == [(pool, None)])
    assert not inferlets.seen
    inferlets.gate.set()
    await inferlets.idle()
    assert [key for key, _ in inferlets.seen] == [A, B]
    await inferlets.stop()
    await pools.stop()
