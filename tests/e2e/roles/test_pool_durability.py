"""A pool's durability at a real server: launches that say nothing follow it, and those that say otherwise don't."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest

import tartlet
from tartlet_common.errors.registry import InvalidArgument, ProgramKilled, TartletError
from tartlet_common.rpc.error_proto import error_from_proto
from tartlet_protos import control_pb2, control_pb2_grpc
from tests.e2e.serving import PROGRAMS, Serving, client_of, out, program, serving
from tests.run_directory import run_directory

POOL = "/demo"


@pytest.fixture(scope="module")
def pooled() -> Iterator[Serving]:
    """A server whose one engine belongs to the pool `demo`, which is everyone's."""
    with run_directory() as directory, serving(directory, TARTLET_WORKER_POOL="demo") as running:
        yield running


@asynccontextmanager
async def control_of(server: Serving) -> AsyncIterator[control_pb2_grpc.ControlAsyncStub]:
    """Yields the stub of the server's control."""
    async with grpc.aio.insecure_channel(f"unix:{server.run_dir}/control.sock") as channel:
        yield control_pb2_grpc.ControlStub(channel)


async def set_durability(control: control_pb2_grpc.ControlAsyncStub, durability: str) -> TartletError | None:
    """Gives the pool a durability, as the operator does; returns control's refusal."""
    order = control_pb2.PoolOrder(pool=POOL, durability=durability)
    reply = await control.SetOrder(control_pb2.SetOrderRequest(order=order))
    return error_from_proto(reply.error)


async def is_recorded(server: Serving, client: tartlet.AsyncClient, **launch: Any) -> bool:
    """Returns whether a program that waits leaves a journal when it is killed."""
    run = await client.run(spec=tartlet.LaunchSpec(program("waits"), **launch))
    return await leaves_journal(server, client, run.program_id)


async def leaves_journal(server: Serving, client: tartlet.AsyncClient, program_id: str) -> bool:
    """Kills a program, and returns whether its journal is there."""
    run = await client.attach(program_id)
    async for event in run:
        if isinstance(event, tartlet.Message):
            break
    await client.kill(program_id)
    assert isinstance((await run.wait()).error, ProgramKilled)
    return (server.run_dir / "journals" / f"{program_id}.journal").exists()


async def test_launches_follow_their_pool_from_its_change_on_unless_they_say_otherwise(pooled: Serving) -> None:
    async with client_of(pooled) as client, control_of(pooled) as control:
        assert await is_recorded(pooled, client), "the runtime's setting is on"
        before = await client.run(spec=tartlet.LaunchSpec(program("waits")))
        assert await set_durability(control, "off") is None
        while await is_recorded(pooled, client):  # until the runtime has been told
            pass
        assert not await is_recorded(pooled, client, pool="demo")
        assert await is_recorded(pooled, client, durability="on")
        for flags, wanted in ((), False), (("--durability", "on"), True):
            launch = ("launch", *flags, "--server", pooled.address, str(PROGRAMS / "waits.py"))
            launched = (await asyncio.to_thread(out, pooled.run_dir, *launch)).strip()
            assert await leaves_journal(pooled, client, launched) is wanted
        assert await leaves_journal(pooled, client, before.program_id), "it was launched before the change"
        refused = await set_durability(control, "never")
        assert isinstance(refused, InvalidArgument)
        assert refused.fields["argument"] == "durability"
        assert not await is_recorded(pooled, client)
        assert await set_durability(control, "") is None
        while not await is_recorded(pooled, client):
            pass
