"""Wiring of the gateway role: settings, the clients of the runtime, routes, the gate, the server."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

from starlette.types import ASGIApp, Scope

from tartlet_common.config.lists import listed
from tartlet_common.config.settings import GatewaySettings
from tartlet_common.errors.registry import InvalidConfig
from tartlet_common.process.role import Notify
from tartlet_common.rpc.endpoints import Tls
from tartlet_common.telemetry import names, telemetry
from tartlet_gateway.access.audit import RefusedRequests
from tartlet_gateway.access.gate import Gate
from tartlet_gateway.access.identities import Identities
from tartlet_gateway.access.identity import Authenticator
from tartlet_gateway.access.keys import Keys
from tartlet_gateway.access.rates import Rate
from tartlet_gateway.api.routes import pattern, router
from tartlet_gateway.http.certificate import Certificate
from tartlet_gateway.http.guard import LOOPBACK, Guard, host_name
from tartlet_gateway.http.metered import Metered
from tartlet_gateway.http.server import Bounds, bind, parts, serve
from tartlet_gateway.http.traced import Traced
from tartlet_gateway.openai.errors import refuse
from tartlet_gateway.runs.backends import Backends, Keeping
from tartlet_gateway.runs.caller import caller_of

_MODEL_CHARS: Final = 200
log: Final = logging.getLogger("tartlet.gateway")


async def main(settings: GatewaySettings, notify: Notify) -> None:
    """Serve until cancelled.

    Raises:
        InvalidConfig: the address isn't one of this machine alone and there are no keys, or a file can't be read.
        AddressInUse: another process serves at the address.
    """
    check_address(settings)
    certificate = Certificate.of(settings.http_certificate, settings.http_key)
    identities = identities_of(settings)
    listener = bind(settings.address)
    url = f"{'https' if certificate else 'http'}://{settings.address}/v1"
    control = settings.control or None
    kept = Keeping(settings.responses_kept_s, settings.responses_resume_s)
    backends = Backends(settings.runtime, Tls.of(settings), control, settings.body_bytes, kept)
    stopped, refused = asyncio.Event(), RefusedRequests()
    try:
        routes = router(backends, stopped)
        app = guarded(backends.held(routes), identities, settings, refused)
        if settings.health_address or telemetry.enabled():
            app = Metered(app, partial(pattern, routes))
        app = Traced(app, partial(pattern, routes), _facts)
        log.info("listening at %s", url)
        bounds = Bounds(settings.body_bytes, settings.max_connections)
        await serve(app, listener, lambda: notify.ready(url), stopped.set, bounds, certificate)
    finally:
        notify.set_ready("draining")
        refused.close()
        await backends.close()
        if identities is not None:
            await identities.close()


def _facts(scope: Scope) -> dict[str, str]:
    """Return what a request's span says beside HTTP's attributes."""
    caller = caller_of(scope)
    known = {names.ATTR_MODEL: caller.model[:_MODEL_CHARS], names.ATTR_PROGRAM_ID: caller.program_id}
    return {name: value for name, value in known.items() if value}


def identities_of(settings: GatewaySettings) -> Identities | None:
    """Return those whom the settings let in; None: nobody is asked who they are.

    Raises:
        InvalidConfig: a file can't be read, or a setting is missing.
    """
    keys = Keys(settings.keys) if settings.keys else None
    tokens: list[Authenticator] = []
    if settings.oidc_issuer:
        from tartlet_gateway.access.oidc import Oidc  # here: a gateway without tokens starts sooner

        claim, authority = settings.oidc_tenant_claim, settings.oidc_authority
        tokens.append(Oidc(settings.oidc_issuer, settings.oidc_audience, claim, authority))
    if settings.token_review:
        from tartlet_gateway.access.token_review import TokenReview  # here: as above

        server, credentials = settings.token_review_server, settings.token_review_credentials
        tokens.append(TokenReview(settings.token_review_audience, server, credentials))
    return Identities(keys, tokens) if keys is not None or tokens else None


def guarded(
    app: ASGIApp, identities: Identities | None, settings: GatewaySettings, refused: RefusedRequests
) -> ASGIApp:
    """Return the application behind the checks of callers, rates, hosts and origins."""
    if identities is not None:
        rate = Rate(settings.tenant_requests_per_minute, settings.tenant_tokens_per_minute, settings.tenant_concurrency)
        app = Gate(app, identities, rate, settings.replicas, refused=refused)
    return Guard(app, frozenset(listed(settings.origins)), refuse, local=identities is None)


def check_address(settings: GatewaySettings) -> None:
    """Refuse an address that other machines reach if no key is asked for.

    Raises:
        InvalidConfig: so it is, or the address is no `host:port`.
    """
    parts(settings.address)
    asks = settings.keys is not None or settings.oidc_issuer or settings.token_review
    if not asks and host_name(settings.address) not in LOOPBACK:
        remedy = "Serve on 127.0.0.1, or give `keys`: `tartlet keys create` writes the file."
        detail = f"address: other machines reach {settings.address}, and no key is asked for"
        raise InvalidConfig(role="gateway", detail=detail, remedy=remedy)
