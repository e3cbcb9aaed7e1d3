"""Channels and servers: sockets are private, addresses are not shared, TCP wants TLS."""

from __future__ import annotations

import asyncio
import socket
import stat
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from tartlet_common.config.paths import make_private
from tartlet_common.errors.registry import AddressInUse, InvalidConfig, PermissionDenied
from tartlet_common.rpc.endpoints import make_channel, make_server


def _nothing(_: grpc.aio.Server) -> None:
    """A server without services."""


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_sockets_directory_is_made_private_and_its_address_is_not_shared(run_dir: Path) -> None:
    run_dir.chmod(0o755)
    address = f"unix:{run_dir}/x.sock"

    async def twice() -> None:
        server = await make_server(_nothing, address)
        assert _mode(run_dir) == 0o700
        with pytest.raises(AddressInUse):
            await make_server(_nothing, address)
        await server.stop(None)

    asyncio.run(twice())


def test_a_socket_left_behind_by_a_killed_process_is_taken_over(run_dir: Path) -> None:
    path = run_dir / "x.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    async def start() -> None:
        await (await make_server(_nothing, f"unix:{path}")).stop(None)

    asyncio.run(start())


def test_a_tcp_port_in_use_is_a_typed_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(AddressInUse, match=address):
            asyncio.run(make_server(_nothing, address, insecure=True))


def test_tcp_without_tls_is_refused_at_both_ends() -> None:
    async def both() -> None:
        with pytest.raises(InvalidConfig, match="TLS"):
            make_channel("127.0.0.1:1")
        with pytest.raises(InvalidConfig, match="TLS"):
            await make_server(_nothing, "127.0.0.1:0")

    asyncio.run(both())


def test_a_socket_path_too_long_for_the_kernel_is_refused_before_binding(run_dir: Path) -> None:
    with pytest.raises(InvalidConfig, match="107"):
        asyncio.run(make_server(_nothing, f"unix:{run_dir}/{'x' * 120}.sock"))


async def test_a_server_that_is_far_away_is_reached() -> None:
    server = await make_server(_nothing, address := f"127.0.0.1:{_free_port()}", insecure=True)
    ends: list[asyncio.Task[None]] = []
    writers: list[asyncio.StreamWriter] = []

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            await asyncio.sleep(0.15)
            writer.write(data)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*address.split(":"))
        writers.extend((writer, far_writer))
        ends.append(asyncio.create_task(carry(reader, far_writer)))
        ends.append(asyncio.create_task(carry(far_reader, writer)))

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as proxy:
        async with make_channel(f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}", insecure=True) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as answer:
                await _ask(channel)
        for writer in writers:
            writer.close()
        await asyncio.gather(*ends, return_exceptions=True)
    await server.stop(0)
    assert answer.value.code() is grpc.StatusCode.UNIMPLEMENTED  # it was asked


async def _ask(channel: Any) -> None:
    await channel.unary_unary("/no/such")(b"", timeout=10)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def test_somebody_elses_directory_is_refused(monkeypatch: pytest.MonkeyPatch, run_dir: Path) -> None:
    monkeypatch.setattr("os.getuid", lambda: 4242)
    with pytest.raises(PermissionDenied, match="4242"):
        make_private(run_dir)
