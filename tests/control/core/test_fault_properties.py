"""After any sequence of ends, every program is told, nothing stays held, and the books balance at every moment."""

from __future__ import annotations

import random
from functools import partial

import pytest

from tartlet_common.abi import Op, u32
from tartlet_common.errors import registry as errors
from tartlet_control.calls.queue import Barrier
from tartlet_control.calls.tables import Share
from tartlet_control.core.lifecycle import StartRequest
from tartlet_control.core.queue_runner import was_told
from tartlet_control.tables.ledger import PAGES
from tartlet_worker.fake import FakeOptions
from tests.control.harness import Guest, Host, decode_text

# eight pages for programs that want up to five each: contention is the rule
OPTIONS = FakeOptions(page_size=2, num_pages=8, num_embeds=24, num_slots=6, fail_token=99, max_batch_commands=4)
COMMON = (
    *("start", "start", "work", "work", "work", "work", "fail", "free", "cancel", "reset", "unknown", "end", "abort"),
    *("tables", "tables", "tables", "any table"),
    *("pump", "pump", "pump", "answer", "answer", "answer", "answer"),
)
RARE = ("lose engine", "join engine", "join engine", "reconnect", "lose runtime", "away", "cordon")


class World:
    """A host to which random things happen."""

    def __init__(self, pick: random.Random, policy: str, placement: str = "sticky") -> None:
        self.pick = pick
        self.host = Host(OPTIONS, engines=2, batching=policy, runtime_grace_s=1.0, placement=placement)
        self.engines = 2
        self.lost: set[str] = set()  # programs whose runtime left them

    def live(self) -> list[Guest]:
        known = self.host.core.lifecycle.programs
        return [
            g for g in self.host.guests.values() if g.program_id in known and g.killed is None and g.settled is None
        ]

    def act(self, action: str) -> None:
        host, core = self.host, self.host.core
        live = self.live()
        guest = self.pick.choice(live) if live else None
        match action:
            case "start":
                host.start(f"p{len(host.guests)}")
            case "pump":
                host.pump()
            case "answer":
                host.answer()
            case "join engine":
                self.engines += 1
                host.join(f"e{self.engines}", OPTIONS)
            case "lose engine" if core.engines:
                core.on_engine_gone(core.engines[self.pick.choice(sorted(core.engines))])
            case "cordon" if core.engines:
                core.cordon(self.pick.choice(sorted(core.engines)))
            case "reconnect":
                self.reconnect()
            case "lose runtime":
                self.part(set())
                core.on_runtime_gone(host.session)
                host.clock.advance(1.5)
                core.tick()
                host.session = core.on_runtime("rt", f"again{len(self.lost)}{host.clock.now()}", "", [])
            case "away":
                host.clock.advance(0.03)
                core.tick()
            case _ if guest is not None:
                self.guest_acts(action, guest)

    def part(self, kept: set[str]) -> None:
        """Let the runtime hear all so far, and give up all programs but `kept`."""
        self.host.flush()
        self.host.collect()
        self.lost |= set(self.host.core.lifecycle.programs) - kept

    def reconnect(self) -> None:
        """Break the runtime's stream; the runtime comes back with some of its programs."""
        host = self.host
        kept = [g for g in self.live() if self.pick.random() < 0.7]
        self.part({g.program_id for g in kept})
        host.core.on_runtime_gone(host.session)
        announced = [StartRequest(g.handle, g.program_id) for g in kept]
        host.session = host.core.on_runtime("rt", host.session.incarnation, "", announced)
        host.collect()

    def guest_acts(self, action: str, guest: Guest) -> None:
        match action:
            case "work":
                decode_text(guest, [5] * self.pick.randint(1, 6), self.pick.randint(1, 4), page_size=2)
            case "fail":
                guest.embed([0], [99], [0])
            case "free":
                guest.alloc(Op.DEALLOC_KVPAGE, range(self.pick.randint(1, 3)))
            case "cancel":
                guest.put(Op.CANCEL, a=self.pick.randint(0, guest.tickets), wait=True)
            case "tables":
                self.use_tables(guest)
            case "any table":
                self.name_anything(guest)
            case "reset":
                guest.put(Op.RESET)
            case "unknown":
                guest.forward([77], [0], queue=self.pick.choice([0, 5]), wait=True)
            case "end" | "abort":
                self.host.flush()
                self.host.core.on_end(self.host.session, guest.handle, failed=action == "abort")

    def use_tables(self, guest: Guest) -> None:
        """Compute over a table, and share it with a table of another queue."""
        rows, n = self.pick.randint(1, 3), self.pick.randint(1, 4)
        guest.put(Op.CREATE_QUEUE, queue=1, a=0)  # which fails from the second time on
        guest.alloc(Op.ALLOC_EMB, range(10, 14))
        guest.table(0, keep=0, new=rows)
        guest.embed(list(range(10, 10 + n)), [5] * n, list(range(n)))
        guest.forward_table(0, 0, list(range(10, 10 + n)))
        guest.table(1, 0, keep=self.pick.randint(0, 2 * rows), new=self.pick.randint(0, 1), queue=1)
        if self.pick.random() < 0.5:
            guest.table(self.pick.randint(0, 1), queue=self.pick.randint(0, 1))
        guest.alloc(Op.DEALLOC_EMB, range(10, 14))

    def name_anything(self, guest: Guest) -> None:
        """Submit calls on tables whose arguments mean nothing in particular."""
        number = partial(self.pick.choice, [0, 1, 2, 3, 7, 2**31, 2**32 - 1])
        queue = self.pick.choice([0, 0, 1, 5])
        if self.pick.random() < 0.5:
            payload = self.pick.choice([b"", u32([number()]), b"abc"])
            guest.put(Op.TABLE, queue=queue, a=number(), b=number(), c=self.pick.choice([0, 1, 2]), payload=payload)
        else:
            payload = self.pick.choice([b"", u32([1, 0, 0, 0]), u32([number(), number(), number()]), bytes(13)])
            guest.put(Op.FORWARD_TABLE, queue=queue, a=number(), b=number(), c=number() & 1, payload=payload)

    def check(self) -> None:
        for engine, batcher in self.host.core.batchers.items():
            programs = self.host.core.lifecycle.placed_on(engine)
            for i, pool in enumerate(engine.pools):
                pool.check()
                held = [p.places[engine.model_index].num_held(i) for p in programs]
                assert sum(held) == pool.num_refs
            for program in programs:
                place = program.places[engine.model_index]
                assert len({row for table in place.tables.values() for row in table.rows}) == place.num_rows
                assert program.num_pages == sum(p.num_held(PAGES) for p in program.places.values())
            for queue in batcher.waiting:
                assert queue.pending[0].kind
                assert queue.program.live
        for program in self.host.core.lifecycle.programs.values():
            waiting = [command for q in program.queues.values() if q.id >= 0 for command in q.pending]
            own = sum(not isinstance(command, (Share, Barrier)) and not was_told(command) for command in waiting)
            queued = own + sum(sync.fork is None for q in program.queues.values() for sync in q.syncs)
            assert program.in_flight == program.dispatched + queued
            assert program.dispatched == sum(q.dispatched - q.settled for q in program.queues.values())


@pytest.mark.parametrize("policy", ["adaptive", "eager", "t-only"])
@pytest.mark.parametrize("seed", range(15))
def test_nothing_leaks_and_everybody_is_told(seed: int, policy: str) -> None:
    pick = random.Random(seed)
    world = World(pick, policy, pick.choice(["sticky", "autellix"]))
    host = world.host
    world.act("start")
    for _ in range(200):
        world.act(pick.choice(COMMON if pick.random() < 0.96 else RARE))
        world.check()
    host.run()
    world.check()
    for guest in list(host.guests.values()):
        host.core.on_end(host.session, guest.handle, failed=False)
    host.run()
    host.clock.advance(host.core.settings.rebuild_grace_s)  # those that wait for an engine end, if none is there
    host.core.tick()
    host.run()
    for guest in host.guests.values():
        assert guest.settled is not None or guest.program_id in world.lost or not guest.tickets, guest
        if guest.killed is not None:
            assert isinstance(guest.killed, (errors.OutOfPages, errors.WorkerLost, errors.NoEngine))
    assert not host.core.lifecycle.programs
    assert not host.core.lifecycle.ending
    for engine in host.core.engines.values():
        assert [p.num_held for p in engine.pools] == [0, 0, 0]
        assert not engine.program_ids
        assert engine.tables.num_held == engine.prefixes.num_branches
    host.core.check_ledgers()
