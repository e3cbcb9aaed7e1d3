"""Wiring of the gateway role: settings, the clients of the runtime, routes, the gate, the server."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

from starlette.types import ASGIApp

from tartlet_common.config.lists import listed
from tartlet_common.config.settings import GatewaySettings
from tartlet_common.errors.registry import InvalidConfig
from tartlet_common.process.role import Notify
from tartlet_common.rpc.endpoints import Tls
from tartlet_common.telemetry import telemetry
from tartlet_gateway.access.gate import Gate
from tartlet_gateway.access.keys import Keys
from tartlet_gateway.access.rates import Rate
from tartlet_gateway.api.routes import pattern, router
from tartlet_gateway.http.certificate import Certificate
from tartlet_gateway.http.guard import LOOPBACK, Guard, host_name
from tartlet_gateway.http.metered import Metered
from tartlet_gateway.http.server import bind, parts, serve
from tartlet_gateway.openai.errors import refuse
from tartlet_gateway.runs.backends import Backends, Keeping

log: Final = logging.getLogger("tartlet.gateway")


async def main(settings: GatewaySettings, notify: Notify) -> None:
    """Serve until cancelled.

    Raises:
        InvalidConfig: the address isn't one of this machine alone and there are no keys, or a file can't be read.
        AddressInUse: another process serves at the address.
    """
    check_address(settings)
    certificate = Certificate.of(settings.http_certificate, settings.http_key)
    keys = Keys(settings.keys) if settings.keys else None
    listener = bind(settings.address)
    url = f"{'https' if certificate else 'http'}://{settings.address}/v1"
    control = settings.control or None
    kept = Keeping(settings.responses_kept_s, settings.responses_resume_s)
    backends = Backends(settings.runtime, Tls.of(settings), control, settings.body_bytes, kept)
    stopped = asyncio.Event()
    try:
        routes = router(backends, stopped)
        app = guarded(routes, keys, settings)
        if settings.health_address or telemetry.enabled():
            app = Metered(app, partial(pattern, routes))
        log.info("serving at %s", url)
        await serve(app, listener, lambda: notify.ready(url), stopped.set, settings.body_bytes, certificate)
    finally:
        notify.set_ready("draining")
        await backends.close()


def guarded(app: ASGIApp, keys: Keys | None, settings: GatewaySettings) -> ASGIApp:
    """Return the application behind the checks of keys, rates, hosts and origins."""
    if keys is not None:
        rate = Rate(settings.tenant_requests_per_minute, settings.tenant_tokens_per_minute, settings.tenant_concurrency)
        app = Gate(app, keys, rate, settings.replicas)
    return Guard(app, frozenset(listed(settings.origins)), refuse, local=keys is None)


def check_address(settings: GatewaySettings) -> None:
    """Refuse an address that other machines reach if no key is asked for.

    Raises:
        InvalidConfig: so it is, or the address is no `host:port`.
    """
    parts(settings.address)
    if settings.keys is None and host_name(settings.address) not in LOOPBACK:
        remedy = "Serve on 127.0.0.1, or give `keys`: `tartlet keys create` writes the file."
        detail = f"address: other machines reach {settings.address}, and no key is asked for"
        raise InvalidConfig(role="gateway", detail=detail, remedy=remedy)
