"""What is worked on beside the loop: its bounds, its order, and what it leaves to others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tartlet_common.abi import Flag, Op, Record
from tartlet_common.capabilities import Grant
from tartlet_common.engine.pools import ANYWHERE, Reach
from tartlet_common.errors.registry import NoEngine, ResourceQuotaExceeded, TartletError, TooManyCommands
from tartlet_protos import control_pb2
from tartlet_runtime.abi.limits import MAX_DEFERRED, MAX_DEFERRED_BYTES
from tartlet_runtime.answers.deferred import THREADS, Bench, Deferred, Job
from tartlet_runtime.answers.local_ops import LocalOps
from tartlet_runtime.answers.models import ModelTable
from tartlet_runtime.answers.tokens import TokenizerEntry
from tartlet_runtime.budget.ledger import Ledger
from tartlet_runtime.children.children import Children
from tartlet_runtime.web.exchange import Exchanges
from tests.runtime.fake_control import engine_spec, tokenizer_json
from tests.runtime.harness import native, no_children, no_requests, running, until

AWAIT = int(Flag.AWAIT)


@dataclass
class Caller:
    """A program that notes what it is told."""

    args: tuple[str, ...] = ()
    program_id: str = "p"
    model: str = "fake"
    reach: Reach = ANYWHERE
    deferred: Deferred = field(default_factory=Deferred)
    eager_bytes: int = 0
    answers: list[tuple[int, bytes]] = field(default_factory=list)
    errors: list[TartletError] = field(default_factory=list)
    receives: list[int] = field(default_factory=list)

    web: Exchanges = field(default_factory=Exchanges)
    children: Children = field(default_factory=Children)
    max_children: int = 0
    tenant: str = ""
    grants: tuple[Grant, ...] = ()
    is_recorded: bool = False
    is_recovering: bool = False

    def continue_with(self, record: Record, payload: bytes) -> None:
        raise AssertionError(payload)

    def leave(self, action: Callable[[], None]) -> None:
        action()

    def result(self, ticket: int, a: int, b: int, payload: bytes) -> None: ...

    def cancelled(self, ticket: int) -> None: ...

    @property
    def inbox(self) -> Caller:
        return self

    @property
    def output(self) -> Caller:
        return self

    def write(self, stream: int, data: bytes) -> None: ...

    def send(self, message: bytes) -> None: ...

    def receive(self, ticket: int) -> None:
        self.receives.append(ticket)

    def answer(self, record: Record, payload: bytes) -> None:
        self.answers.append((record.ticket, payload))

    def refuse(self, record: Record, error: TartletError) -> None:
        self.errors.append(error)

    def end(self, error: TartletError | None) -> None: ...


def row(op: int, ticket: int = 1, *, flags: int = AWAIT, b: int = 0, c: int = 0, length: int = 0) -> Record:
    return Record(op, flags, ticket, 0, 0, b, c, 0, length)


@contextlib.asynccontextmanager
async def loaded(directory: Path, tasks: asyncio.TaskGroup, **spec: Any) -> AsyncIterator[LocalOps]:
    """Operations over one model whose tokenizer is there."""

    async def fetch(_digest: str) -> bytes:
        return tokenizer_json()

    models = ModelTable(directory, fetch, tasks.create_task, Ledger(4 << 30))
    spec_json = json.dumps(asdict(engine_spec(**spec)))
    models.update([control_pb2.ModelInfo(index=0, name="fake", spec_json=spec_json, ready=True)])
    await until(lambda: isinstance(models.tokenizer(0, ANYWHERE), TokenizerEntry))
    ops = LocalOps(models, tasks.create_task, no_requests(), no_children())
    try:
        yield ops
    finally:
        ops.close()


def empty_table(directory: Path, tasks: asyncio.TaskGroup) -> ModelTable:
    """A table of a runtime whose control knows no model."""

    async def fetch(_digest: str) -> bytes:
        return tokenizer_json()

    return ModelTable(directory, fetch, tasks.create_task, Ledger(4 << 30))


async def test_parts_of_a_large_vocabulary_are_packed_beside_the_loop_and_only_for_who_awaits_them(
    tmp_path: Path,
) -> None:
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks, loaded(tmp_path, tasks, vocab_size=128_000) as ops:
        caller = Caller()
        ops.run(caller, row(Op.GET_VOCABS), b"")  # all of it is kept packed
        ops.run(caller, row(Op.GET_VOCABS, 2, b=1, c=5), b"")
        assert [ticket for ticket, _ in caller.answers] == [1, 2]
        for ticket in (3, 4, 5):
            ops.run(caller, row(Op.GET_VOCABS, ticket, b=1), b"")
        assert len(caller.answers) == 2, "nothing large is packed on the loop"
        assert [type(e) for e in caller.errors] == [ResourceQuotaExceeded]  # two of them are 4 MiB nearly
        await until(lambda: len(caller.answers) == 4)
        caller.eager_bytes = 0
        for _ in range(1000):
            ops.run(caller, row(Op.GET_VOCABS, 9, flags=0, b=1), b"")
        assert (caller.eager_bytes, caller.deferred) == (0, Deferred())


async def test_a_receive_that_nobody_awaits_takes_no_message(tmp_path: Path) -> None:
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks, loaded(tmp_path, tasks) as ops:
        caller = Caller()
        ops.run(caller, row(Op.RECEIVE, 1, flags=0), b"")
        ops.run(caller, row(Op.RECEIVE, 2), b"")
        assert caller.receives == [2]


async def test_what_programs_read_of_a_model_says_what_a_batch_takes(tmp_path: Path) -> None:
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks, loaded(tmp_path, tasks, max_batch_tokens=77) as ops:
        caller = Caller()
        ops.run(caller, row(Op.GET_MODEL), b"")
        assert json.loads(caller.answers[0][1])["max_batch_tokens"] == 77


async def test_a_program_that_asks_for_a_model_waits_for_the_first_engine(tmp_path: Path) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        models = empty_table(tmp_path, tasks)
        ops = LocalOps(models, tasks.create_task, no_requests(), no_children(), first_engine_s=60)
        caller = Caller(model="")
        ops.run(caller, row(Op.GET_MODEL), b"")
        for _ in range(MAX_DEFERRED):
            ops.run(caller, row(Op.GET_MODEL, 2), b"")
        assert (caller.answers, [type(e) for e in caller.errors]) == ([], [TooManyCommands])
        models.update([control_pb2.ModelInfo(index=0, name="fake", spec_json=json.dumps(asdict(engine_spec())))])
        await until(lambda: len(caller.answers) == MAX_DEFERRED)
        assert json.loads(caller.answers[0][1])["name"] == "fake"
        assert caller.deferred == Deferred()
        models.update([])  # control begins anew
        ops.run(caller, row(Op.GET_MODEL, 3), b"")
        assert len(caller.answers) == MAX_DEFERRED
        ops.run(caller, row(Op.GET_MODEL, 4, flags=0), b"")
        ops.close()
        models.update([control_pb2.ModelInfo(index=0, name="fake", spec_json=json.dumps(asdict(engine_spec())))])
        await until(lambda: caller.deferred == Deferred())
        assert caller.answers[-1][0] == 3


async def test_a_program_that_asks_for_a_model_is_refused_if_no_engine_joins(tmp_path: Path) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        ops = LocalOps(empty_table(tmp_path, tasks), tasks.create_task, no_requests(), no_children(), first_engine_s=0)
        caller = Caller()
        ops.run(caller, row(Op.GET_MODEL), b"")
        await until(lambda: bool(caller.errors))
        assert (caller.answers, [type(e) for e in caller.errors]) == ([], [NoEngine])
        assert caller.deferred == Deferred()
        ops.close()


async def test_one_programs_jobs_are_bounded_run_one_by_one_and_leave_the_process_its_threads() -> None:
    ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    ready.set_result(None)
    gate, lock = threading.Event(), threading.Lock()
    under_way: dict[int, int] = {}
    most = {"one": 0, "all": 0}

    def job(owner: int, ticket: int, size: int = 1) -> Job:
        def work(_: object) -> bytes:
            with lock:
                under_way[owner] = under_way.get(owner, 0) + 1
                most["one"] = max(most["one"], under_way[owner])
                most["all"] = max(most["all"], sum(under_way.values()))
            gate.wait(10)
            with lock:
                under_way[owner] -= 1
            return b""

        return Job(row(Op.TOKENIZE, ticket), size, ready, work)

    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        bench = Bench(tasks.create_task)
        callers = [Caller() for _ in range(20)]
        for ticket in range(3):
            for number, caller in enumerate(callers):
                bench.put(caller, job(number, ticket))
        await until(lambda: sum(under_way.values()) == THREADS)
        await asyncio.gather(*(asyncio.to_thread(lambda: None) for _ in range(100)))  # others have threads all the same
        ended = callers[-1]
        ended.deferred.clear()
        gate.set()
        await until(lambda: all(not c.deferred.is_working for c in callers))
        assert most == {"one": 1, "all": THREADS}
        assert all([ticket for ticket, _ in c.answers] == [0, 1, 2] for c in callers[:-1])
        assert len(ended.answers) <= 1, "what an ended program has not had begun is not done"

        flood = Caller()
        gate.clear()
        for ticket in range(MAX_DEFERRED):
            bench.put(flood, job(99, ticket))
        with pytest.raises(TooManyCommands):
            bench.put(flood, job(99, MAX_DEFERRED))
        large = Caller()
        bench.put(large, job(98, 0, size=MAX_DEFERRED_BYTES + 1))  # one alone may be larger
        with pytest.raises(ResourceQuotaExceeded):
            bench.put(large, job(98, 1))
        gate.set()
        await until(lambda: not flood.deferred.is_working and not large.deferred.is_working)
        assert large.deferred == Deferred()
        bench.close()


async def test_slow_commands_for_the_runtime_are_worked_on_in_turns(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = LocalOps.run

    def slow(self: LocalOps, caller: Any, one: Record, payloads: bytes) -> None:
        end = time.perf_counter() + 0.001
        while time.perf_counter() < end:
            pass
        run(self, caller, one, payloads)

    monkeypatch.setattr(LocalOps, "run", slow)
    async with running(run_dir) as rig:
        stream, guest = await native(rig)
        guest.submit(*[(Op.SEND, {"payload": b"%d" % i}) for i in range(800)])
        guest.end()
        turns, reading = 0, asyncio.ensure_future(stream.rest())
        while not reading.done():
            await asyncio.sleep(0)
            turns += 1
        assert [e.data for e in reading.result()] == [b"%d" % i for i in range(800)] + [b""]
    assert turns > 100, "800 ms of commands leave others their turns"
