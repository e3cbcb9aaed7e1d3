"""Wiring of the gateway role: settings, the client of the runtime, routes, the server."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import tartlet
from tartlet_common.config.settings import GatewaySettings, listed
from tartlet_common.errors.registry import InvalidConfig
from tartlet_common.process.role import Notify
from tartlet_common.rpc.endpoints import Tls
from tartlet_gateway.http.guard import LOOPBACK, Guard, host_name
from tartlet_gateway.http.server import bind, parts, serve
from tartlet_gateway.openai.errors import refuse
from tartlet_gateway.openai.routes import router
from tartlet_gateway.runs.launch import Runs
from tartlet_gateway.runs.models import Models

log: Final = logging.getLogger("tartlet.gateway")


async def main(settings: GatewaySettings, notify: Notify) -> None:
    """Serve until cancelled.

    Raises:
        InvalidConfig: the address isn't one of this machine alone.
        AddressInUse: another process serves at the address.
    """
    check_loopback(settings.address)
    listener = bind(settings.address)
    url = f"http://{settings.address}/v1"
    async with tartlet.AsyncClient(settings.runtime, tls=Tls.of(settings)) as client:
        stopped = asyncio.Event()
        app = Guard(
            router(Runs(client, settings.body_bytes), Models(client), stopped),
            frozenset(listed(settings.origins)),
            refuse,
        )
        log.info("serving at %s", url)
        try:
            await serve(app, listener, lambda: notify.ready(url), stopped.set)
        finally:
            notify.set_ready("draining")


def check_loopback(address: str) -> None:
    """Refuse an address that other machines reach: the gateway asks for no key yet.

    Raises:
        InvalidConfig: the address is no `host:port`, or its host is not a loopback name or address.
    """
    parts(address)
    if host_name(address) not in LOOPBACK:
        remedy = "Serve on 127.0.0.1, and let a reverse proxy on this machine ask for keys."
        raise InvalidConfig(role="gateway", detail=f"address: other machines reach {address}", remedy=remedy)
