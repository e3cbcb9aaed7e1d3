"""Passes connections to a control that stands by on to the one that leads, so that peers reach the leader anywhere.

Bytes pass unread in both directions: peers and the leader speak TLS with each other, and check each other's identity.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from tartlet_common.errors.registry import AddressInUse, InvalidConfig

log = logging.getLogger("tartlet.control")

_DIAL_S: Final = 2.0
_CHUNK_BYTES: Final = 1 << 16


def split_address(setting: str, address: str) -> tuple[str, int]:
    """Return host and port of a TCP address; IPv6 hosts may stand in brackets.

    Raises:
        InvalidConfig: it isn't HOST:PORT.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or "/" in host or not 0 < int(port) < 1 << 16:
        detail = f"{setting}={address!r} is not HOST:PORT, which a standby's connections need"
        raise InvalidConfig(role="control", detail=detail, remedy="Give HOST:PORT, or leave `advertise` out.")
    return host.removeprefix("[").removesuffix("]"), int(port)


class Standby:
    """Listens where control will serve, and connects each peer to the leader."""

    def __init__(self, address: str, set_ready: Callable[[str], None]) -> None:
        """Name the address; `set_ready` hears why this control can't be used, or "" once there is a leader."""
        self._address = address
        self._set_ready = set_ready
        self._server: asyncio.Server | None = None
        self._leader = ""
        self._passing: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Listen.

        Raises:
            AddressInUse: another process serves at the address.
            InvalidConfig: the address isn't HOST:PORT.
        """
        host, port = split_address("address", self._address)
        try:
            self._server = await asyncio.start_server(self._serve, host, port)
        except OSError as e:
            raise AddressInUse(address=self._address) from e

    def follow(self, leader: str) -> None:
        """Connect peers to the control at this address from now on; "": to none, until one leads."""
        if leader == self._leader:
            return
        self._leader = leader
        self._cut()  # the one that led before may stand still, and its peers would wait for it
        self._set_ready("" if leader else "standby: no control leads")
        log.info("standing by at %s; %s", self._address, f"{leader} leads" if leader else "no control leads")

    async def close(self) -> None:
        """Stop listening and end all connections."""
        if self._server is not None:
            self._server.close()
        self._cut()
        if self._passing:
            await asyncio.wait(self._passing)
        if self._server is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DIAL_S):
                    await self._server.wait_closed()  # before control itself binds the address

    def _cut(self) -> None:
        for task in self._passing:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._passing.add(task)
        try:
            with contextlib.suppress(OSError, TimeoutError, asyncio.CancelledError):
                await self._connect(reader, writer)
        finally:
            self._passing.discard(task)
            writer.transport.abort()  # what is left can't be delivered, and the peer must notice at once

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._leader:
            return
        host, port = split_address("advertise", self._leader)
        async with asyncio.timeout(_DIAL_S):
            from_leader, to_leader = await asyncio.open_connection(host, port)
        ways = [asyncio.ensure_future(_copy(reader, to_leader)), asyncio.ensure_future(_copy(from_leader, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            to_leader.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on until one end closes; a reader that is slow slows its sender down."""
    while data := await reader.read(_CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
