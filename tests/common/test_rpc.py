"""Channels and servers: sockets are private, addresses are not shared, TCP wants TLS."""

from __future__ import annotations

import asyncio
import socket
import stat
from pathlib import Path

import grpc.aio
import pytest

from tartlet_common.errors import AddressInUse, InvalidConfig, PermissionDenied
from tartlet_common.paths import make_private
from tartlet_common.rpc import make_channel, make_server


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


def test_somebody_elses_directory_is_refused(monkeypatch: pytest.MonkeyPatch, run_dir: Path) -> None:
    monkeypatch.setattr("os.getuid", lambda: 4242)
    with pytest.raises(PermissionDenied, match="4242"):
        make_private(run_dir)
