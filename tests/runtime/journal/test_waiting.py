"""What leaves a program waits until its journal is stored. Redis stands behind a proxy that delays answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tartlet_common.abi import Flag, Op
from tartlet_common.errors.registry import JournalUnavailable
from tartlet_common.rpc.error_proto import error_from_proto
from tartlet_protos import common_pb2, control_pb2, programs_pb2
from tests.redis_server import SlowProxy, redis_server, slow_proxy
from tests.runtime.harness import Rig, native, running, until
from tests.runtime.web.servers import serving

_Event = programs_pb2.ProgramEvent
LATE_S = 0.4


@contextlib.asynccontextmanager
async def slow(run_dir: Path, **changes: Any) -> AsyncIterator[tuple[Rig, SlowProxy]]:
    """A runtime whose journals lie in a Redis behind a proxy."""
    with redis_server(run_dir / "redis") as server:
        async with slow_proxy(server.port) as proxy, running(run_dir, journal_url=proxy.url, **changes) as rig:
            yield rig, proxy


def commands(rig: Rig) -> int:
    return sum(len(frame.commands.handles) // 4 for frame in rig.control.frames)


async def test_nothing_leaves_before_the_deliveries_that_caused_it_are_stored(run_dir: Path) -> None:
    async with slow(run_dir) as (rig, proxy):
        stream, guest = await native(rig)
        proxy.open.clear()
        before = commands(rig)
        await guest.call(Op.GET_ARG)  # a delivery that isn't stored
        guest.submit((Op.USAGE, {"flags": 1, "ticket": 2}), (Op.SEND, {"payload": b"hi"}))
        guest.end(text="over")
        heard = asyncio.ensure_future(stream.next())
        await asyncio.sleep(LATE_S)
        assert not heard.done(), heard.result()
        assert commands(rig) == before
        assert not [frame for frame in rig.control.frames if frame.ends]
        proxy.open.set()
        assert (await heard).data == b"hi"
        assert commands(rig) == before + 1
        assert (await stream.next()).data == b"over"


async def test_a_launch_is_accepted_once_its_journal_has_begun(run_dir: Path) -> None:
    async with slow(run_dir) as (rig, proxy):
        proxy.open.clear()
        launched = asyncio.ensure_future(native(rig))
        await asyncio.sleep(LATE_S)
        assert not launched.done()
        proxy.open.set()
        await launched


async def test_guests_get_no_deliveries_while_too_much_is_unstored(run_dir: Path) -> None:
    async with slow(run_dir, journal_unstored_bytes=4096, journal_grace_s=60) as (rig, proxy):
        _, guest = await native(rig)
        proxy.open.clear()
        calls = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(3 * LATE_S):
                while True:
                    await guest.call(Op.GET_ARG)
                    calls += 1
        assert 4096 // 128 < calls < 4096 // 60, "records have more than 60 bytes"
        proxy.open.set()
        await asyncio.wait_for(guest.frame(), 10)  # the answer that was held back


async def test_a_store_that_is_gone_ends_programs_or_lets_them_go_on_unprotected(run_dir: Path) -> None:
    async with slow(run_dir, journal_grace_s=0.5) as (rig, proxy):
        ends, guest = await native(rig)
        goes_on, other = await native(rig, degrade=True)
        proxy.open.clear()
        for each in (guest, other):
            await each.call(Op.GET_ARG)
            each.submit((Op.SEND, {"payload": b"hi"}))
        ended = await ends.next()
        assert ended.kind == _Event.ENDED, "what wasn't stored never left"
        assert isinstance(error_from_proto(ended.error), JournalUnavailable)
        assert (await goes_on.next()).data == b"hi"
        other.end(text="unprotected")
        assert (await goes_on.next()).data == b"unprotected"
        await until(lambda: bool([frame for frame in rig.control.frames if frame.ends]))
        proxy.open.set()


async def test_a_program_ends_whose_first_commands_were_held_back_for_a_store_that_is_gone(run_dir: Path) -> None:
    async with slow(run_dir, journal_grace_s=0.5) as (rig, proxy):
        stream, guest = await native(rig)
        proxy.open.clear()
        await guest.call(Op.GET_ARG)  # a delivery that isn't stored
        guest.submit((Op.USAGE, {"flags": 1, "ticket": 2}))
        async with asyncio.timeout(10):  # control, which has no command of the program, has nothing to say
            ended = await stream.next()
        assert isinstance(error_from_proto(ended.error), JournalUnavailable)
        proxy.open.set()


async def test_requests_and_children_wait_for_the_deliveries_that_caused_them(run_dir: Path) -> None:
    open_to = {"http_hosts": "127.0.0.1", "http_private_hosts": "127.0.0.1"}
    may = common_pb2.Capabilities(http=["*"], spawn=common_pb2.Patterns(patterns=["*"]))
    async with serving() as server, slow(run_dir, **open_to) as (rig, proxy):
        child = common_pb2.Source(language=common_pb2.Source.NATIVE, filename="child.py")
        rig.control.catalogue["", "child"] = control_pb2.CatalogueEntry(name="child", source=child)
        _, guest = await native(rig, capabilities=may)
        starts = len(started(rig))
        proxy.open.clear()
        await guest.call(Op.GET_ARG)  # a delivery that isn't stored
        told = json.dumps({"method": "GET", "url": f"{server.url}/asked"}).encode()
        guest.submit(
            (Op.HTTP_REQUEST, {"flags": Flag.AWAIT, "ticket": 2, "a": len(told), "b": 1, "c": 1024, "payload": told}),
            (Op.SPAWN, {"flags": Flag.AWAIT, "ticket": 3, "a": 1, "payload": b'{"inferlet": "child"}'}),
        )
        await asyncio.sleep(LATE_S)
        assert not server.connections
        assert len(started(rig)) == starts
        proxy.open.set()
        await until(lambda: bool(server.heard) and len(started(rig)) == starts + 1)


def started(rig: Rig) -> list[control_pb2.ProgramStart]:
    return [start for frame in rig.control.frames for start in frame.starts]
