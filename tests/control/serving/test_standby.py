"""A control that stands by passes bytes on to the leader, follows each new one, and frees its address for control."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

import pytest

from tartlet_common.clock import SystemClock
from tartlet_common.config.settings import ControlSettings
from tartlet_common.errors.registry import AddressInUse, InvalidConfig
from tartlet_control.lease.lease import lease_of
from tartlet_control.lease.standby import Standby, split_address
from tests.e2e.cluster import free_port
from tests.redis_server import redis_server

LONG = 3 << 20
"""More bytes than the buffers between three sockets hold."""


class Leader:
    """A server that sends everything back, behind its name."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.address = f"127.0.0.1:{free_port()}"
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", split_address("", self.address)[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self.name)
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def standing_by(said: list[str]) -> AsyncIterator[tuple[Standby, str]]:
    address = f"127.0.0.1:{free_port()}"
    made = Standby(address, said.append)
    await made.open()
    try:
        async with asyncio.timeout(20):
            yield made, address
    finally:
        await made.close()


async def dial(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*split_address("", address))


async def ended(reader: asyncio.StreamReader) -> bytes:
    """Return what arrives until the connection ends, in whatever way."""
    try:
        async with asyncio.timeout(5):
            return await reader.read()
    except ConnectionError:
        return b""


async def test_bytes_pass_whole_both_ways_and_an_end_passes_too() -> None:
    async with standing_by([]) as (made, address), Leader(b"A") as leader:
        made.follow(leader.address)
        reader, writer = await dial(address)
        data = bytes(range(256)) * (LONG // 256)
        writer.write(data)
        assert await reader.readexactly(1 + LONG) == b"A" + data
        writer.write_eof()
        assert await ended(reader) == b""
        writer.close()


async def test_connections_to_an_earlier_leader_end_and_new_ones_go_to_the_next() -> None:
    said: list[str] = []
    async with standing_by(said) as (made, address), Leader(b"A") as first, Leader(b"B") as second:
        reader, writer = await dial(address)
        assert await ended(reader) == b"", "nobody leads yet"
        for leader in (first, second):
            made.follow(leader.address)
            made.follow(leader.address)
            earlier, (reader, writer) = (reader, writer), await dial(address)
            assert await reader.readexactly(1) == leader.name
            assert await ended(earlier[0]) == b""
            earlier[1].close()
        made.follow("")
        assert await ended(reader) == b""
        writer.close()
    assert said == ["", "", "standby: no control leads"]


async def test_the_address_is_free_once_a_standby_is_closed_although_peers_were_connected() -> None:
    async with standing_by([]) as (made, address), Leader(b"A") as leader:
        with pytest.raises(AddressInUse):
            await Standby(address, lambda _: None).open()
        made.follow(leader.address)
        reader, writer = await dial(address)
        assert await reader.readexactly(1) == b"A"
        await made.close()
        assert await ended(reader) == b""
        writer.close()
        again = Standby(address, lambda _: None)
        await again.open()
        await again.close()


@pytest.mark.parametrize("address", ["unix:/run/control.sock", "control", "control:port", "control:0"])
async def test_an_address_that_no_peer_can_dial_is_refused(address: str) -> None:
    with pytest.raises(InvalidConfig):
        await Standby(address, lambda _: None).open()


def test_an_address_may_have_any_host() -> None:
    assert split_address("", "[fd00::1]:7443") == ("fd00::1", 7443)
    assert split_address("", "fd00::1:7443") == ("fd00::1", 7443)
    assert split_address("", "10.0.0.7:7443") == ("10.0.0.7", 7443)


@pytest.mark.parametrize("store", ["file", "redis"])
async def test_whoever_waits_for_a_lease_hears_where_its_holder_is(store: str, tmp_path: Path) -> None:
    with redis_server(tmp_path / "redis") as server:
        url = server.url if store == "redis" else f"file://{tmp_path}/lease"
        settings = ControlSettings(lease_url=url, lease_s=0.6)
        first, second = (
            lease_of(settings.model_copy(update={"advertise": f"host-{n}:1"}), SystemClock()) for n in (1, 2)
        )
        heard: list[str] = []
        async with asyncio.timeout(10):
            await first.acquire(heard.append)
            heard.clear()
            waiting = asyncio.ensure_future(second.acquire(heard.append))
            while not heard:  # noqa: ASYNC110 - the lease is polled
                await asyncio.sleep(0.02)
            await first.release()
            await waiting
            await second.release()
        assert set(heard) == {"host-1:1"}
