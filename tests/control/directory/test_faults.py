"""A directory's Redis that is killed, emptied, stopped or slow changes no answer, and has everything in the end.

What is to be shown of scheduling, and which tests show it while that Redis fails:

| What | Here, in control's core, by each of `FAULTS` | In tests/e2e: killed, emptied and slow |
|---|---|---|
| Figure 2's waits of 18, 18 and 12 steps | `figure_2` | who goes first, as below |
| who goes first under each order | `ranks under ORDER`, `gittins` | answers/test_sharing.py, on the demo model |
| exports, prefixes and their computed tokens, by tenant | `names`, `prefixes`, `placements` | answers/test_sharing.py |
| a flood leaves another tenant its share and programs | `flood` | roles/test_flood.py |

What holds of every order (it keeps the device busy, starves nobody, ranks totally) is shown of pure functions that know
no directory. e2e/failures/test_directory.py has processes whose control dies as well.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any

import pytest

from tartlet_common.abi import Op
from tartlet_common.clock import SystemClock
from tartlet_control.directory.follower import Follower
from tartlet_control.directory.redis_store import RedisStore
from tartlet_control.directory.store import StoreAway
from tartlet_control.lease.redis_client import make_client
from tartlet_control.simulation.costs import UNIT
from tests.control.directory.test_follower import BIG, counts, expected, guest_engine, until
from tests.control.harness import Guest, Host
from tests.control.order.test_orders import FIGURE_2, chain
from tests.control.order.test_shares import SMALL, answer
from tests.control.sharing.test_names import export, imported, listed
from tests.control.sharing.test_reuse import PROMPT, ask
from tests.control.twin import Twin
from tests.redis_faults import FAULTS, BreakableRedis
from tests.redis_server import RedisServer, redis_server, slow_proxy

ANSWER_S = 0.3
LONG, SHORT = 20, 4
"""Steps that programs of `ranks` need."""
Moment = Callable[[], Awaitable[None]]
"""Called between the steps of a scenario: something may happen to Redis then."""
Answers = list[Any]


async def names(moment: Moment) -> Answers:
    """Two tenants export, import, forget and export anew."""
    host = host_of()
    told: Answers = []
    for tenant in ("a", "b"):
        first, cost = ask(host, PROMPT, tenant=tenant)
        told += [cost, export(first, "docs").payload]
        await moment()
        host.end(first)
        second = host.start(tenant=tenant)
        told += [imported(second, "docs").payload, imported(second, "none").error.name]
        await moment()
        told += [export(second, "docs", count=0, tail=(1, 2, 3)).b, listed(second)]
        drop = second.put(Op.UNEXPORT_KVPAGE, payload=b"docs", wait=True)
        host.run()
        told += [second.answer(drop).event, listed(second)]
        await moment()
        export(second, "last")
    return told


async def prefixes(moment: Moment) -> Answers:
    """Programs of two tenants compute equal prompts, in a pool that doesn't hold all of them."""
    host = host_of(replace(BIG, num_pages=24))
    told: Answers = []
    for turn in range(8):
        guest, cost = ask(host, [turn % 5, *PROMPT], tenant="ab"[turn % 2])
        told += [cost, guest.tokens()]
        host.end(guest)
        await moment()
    return told


async def placements(moment: Moment) -> Answers:
    """Contexts follow the rows of their beginnings over three engines, of which one leaves."""
    host = host_of(engines=3, placement="locality")
    told: Answers = []
    for turn in range(9):
        guest, cost = ask(host, [turn % 4, *PROMPT])
        told += [guest_engine(guest), cost, guest.tokens()]
        await moment()
        if turn == 5:
            gone, _ = host.engines.pop()
            host.core.on_engine_gone(gone)
            host.run()
    return told


async def gittins(moment: Moment) -> Answers:
    """Short and long programs end, of which the order learns."""
    host = host_of(order="gittins")
    told: Answers = []
    for turn in range(6):
        host.device_s = (0.01, 5.0)[turn % 2]
        guest = host.start(name=f"kind {turn % 2}")
        guest.alloc(Op.ALLOC_EMB, [0])
        guest.forward([], [0], [], [0])
        host.run()
        told.append(host.core.lifecycle.programs[guest.program_id].account.service_s)
        host.end(guest)
        await moment()
    return [*told, counts(host)]


async def flood(moment: Moment) -> Answers:
    """A tenant with many programs and one with few want the same engine."""
    host = host_of(SMALL, tenant_shares="calm=1")
    guests: list[Guest] = [host.start(tenant="flood") for _ in range(12)] + [host.start(tenant="calm")]
    for guest in guests:
        guest.alloc(Op.ALLOC_EMB, [0])
    host.run()
    states = [host.core.lifecycle.programs[guest.program_id] for guest in guests]
    for step in range(60):
        for guest, state in zip(guests, states, strict=True):
            if not state.queues[0].pending:
                guest.forward([], [0], [], [0])
        host.flush()
        host.pump()
        while len(host._waiting) > 1:
            answer(host)
        if step % 10 == 0:
            await moment()
    spent = [state.account.service_s for state in states]
    share = spent[-1] / sum(spent)
    assert share >= 0.9 * min(0.5, 0.25), "one program takes at most one of the four places of a step"
    assert all(guest.killed is None for guest in guests)
    return spent


async def ranks(order: str, moment: Moment) -> Answers:
    """Four long programs fill each step, and eight short ones come later. Returns the order in which they end."""
    host = host_of(SMALL, order=order, order_quanta_s="0.05,0.2", order_starved_at=0)
    left = [LONG] * 4 + [SHORT] * 8
    guests = [host.start(name=f"needs {steps}") for steps in left]
    states = [host.core.lifecycle.programs[guest.program_id] for guest in guests]
    for guest in guests:
        guest.alloc(Op.ALLOC_EMB, [0])
    host.run()
    ended: list[int] = []
    for step in range(1000):
        for i, (guest, state) in enumerate(zip(guests, states, strict=True)):
            waits = state.queues[0].pending or state.queues[0].dispatched > state.queues[0].settled
            if (i >= 4 and step < 8) or i in ended or waits:
                continue
            if left[i]:
                guest.forward([], [0], [], [0])
                left[i] -= 1
            else:
                ended.append(i)
        if len(ended) == len(guests):
            break
        host.pump()
        answer(host)
        host.clock.advance(0.01)
        if step % 8 == 0:
            await moment()
    late = {i for i in ended[:8] if i >= 4}
    assert len(late) == (4 if order == "fcfs" else 8), "a short program that came later waits for the long ones in fcfs"
    return [ended, [state.account.service_s for state in states]]


async def figure_2(moment: Moment) -> Answers:
    """The example of Autellix under three orders, each in a core of its own, step by step beside the others."""
    traces = [chain(name, 0.0, steps, prefill=1) for name, steps in FIGURE_2.items()]
    quanta = {"fcfs": "1", "mlfq": "0.5,1.5", "plas": "0.5"}
    twins = {o: Twin(traces, UNIT, order=o, order_quanta_s=q, order_starved_at=0) for o, q in quanta.items()}
    _hosts.extend(twin.host for twin in twins.values())
    for step, _ in enumerate(zip_longest(*(twin.steps() for twin in twins.values()))):
        if step % 4 == 0:
            await moment()
    decoded = [sum(steps) for steps in FIGURE_2.values()]
    waits = {o: [end - n for end, n in zip(twin.response_s, decoded, strict=True)] for o, twin in twins.items()}
    assert [round(sum(each)) for each in waits.values()] == [18, 18, 12]
    return [waits]


ORDERS = ("fcfs", "mlfq", "plas", "atlas", "gittins")
SCENARIOS: dict[str, Callable[[Moment], Awaitable[Answers]]] = {
    **{scenario.__name__: scenario for scenario in (names, prefixes, placements, gittins, flood, figure_2)},
    **{f"ranks under {order}": partial(ranks, order) for order in ORDERS},
}
_hosts: list[Host] = []


def host_of(*args: Any, **settings: Any) -> Host:
    """Return a host of a scenario, which `disturbed` follows."""
    _hosts.append(Host(*(args or (BIG,)), **settings))
    _hosts[-1].device_s = 0.01
    return _hosts[-1]


async def nothing() -> None:
    """Nothing happens to Redis."""


@dataclass
class Followed:
    """A host whose directory is kept in Redis under a name."""

    host: Host
    name: str
    follower: Follower
    task: asyncio.Task[None]


class Disturbed:
    """Follows the hosts of a scenario from its first moment on, and breaks Redis at the second."""

    def __init__(self, redis: BreakableRedis, fault: str, name: str) -> None:
        self.redis = redis
        self.fault = fault
        self.name = name
        self.moments = 0
        self.followed: list[Followed] = []

    async def moment(self) -> None:
        self.moments += 1
        if not self.followed:
            for number, host in enumerate(_hosts):
                await self.follow(host, f"{self.name}-{number}")
            await self.has_all()
        elif self.moments == 2:
            self.redis.break_by(self.fault)
        await asyncio.sleep(0.05)

    async def follow(self, host: Host, name: str) -> None:
        follower = Follower(host.core, self.store(name, self.redis.url), SystemClock())
        await follower.load()
        self.followed.append(Followed(host, name, follower, asyncio.create_task(follower.run())))

    def store(self, name: str, url: str) -> RedisStore:
        client = make_client(url, None, None, ANSWER_S, bare=True)
        return RedisStore(client, name, self.moments, ANSWER_S)

    def was_noticed(self) -> bool:
        slow = self.fault == "slow"
        return all(e.follower.counters.losses > 0 or (slow and e.follower.lag_s < 1) for e in self.followed)

    async def has_all(self) -> None:
        for each in self.followed:
            store = self.store(each.name, self.redis.server.url)
            async with asyncio.timeout(20):
                while await fields(store) != expected(each.host):  # noqa: ASYNC110 - Redis tells nobody
                    await asyncio.sleep(0.05)
            await store.close()

    async def close(self) -> None:
        for each in self.followed:
            each.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await each.task
            await each.follower.close()


async def fields(store: RedisStore) -> dict[str, set[bytes]]:
    found: dict[str, set[bytes]] = {}
    with contextlib.suppress(StoreAway):
        async for section, entries in store.read():
            found.setdefault(section, set()).update(field for field, _ in entries)
    return {section: held for section, held in found.items() if held}


@contextlib.asynccontextmanager
async def disturbed(server: RedisServer, fault: str, name: str) -> AsyncIterator[Disturbed]:
    _hosts.clear()
    async with slow_proxy(server.port) as proxy:
        redis = BreakableRedis(server, proxy, ANSWER_S)
        made = Disturbed(redis, fault, name)
        try:
            with redis.mended():
                yield made
        finally:
            await made.close()
            _hosts.clear()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis"), "--appendonly", "no") as running:
        yield running


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_of_redis_changes_no_answer(fault: str, scenario: str, server: RedisServer) -> None:
    undisturbed = await SCENARIOS[scenario](nothing)
    async with disturbed(server, fault, f"{scenario}-{fault}") as redis_fault:
        assert await SCENARIOS[scenario](redis_fault.moment) == undisturbed
        assert redis_fault.moments > 2
        await until(redis_fault.was_noticed)
        redis_fault.redis.mend()
        await redis_fault.has_all()
