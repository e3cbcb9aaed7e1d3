"""What every request passes first: a request id, Host and Origin checks, CORS, and a reply to errors nobody handled."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tartlet_gateway.http.denial import denying
from tartlet_gateway.http.exchange import ClientGoneError, Exchange, Headers

log = logging.getLogger("tartlet.gateway")

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
"""Host names of this machine alone."""
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_AUTHORITY: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([\w.-]+))(?::[0-9]{1,5})?", re.ASCII)
_ORIGIN: Final = re.compile(r"https?://([^/]+)", re.IGNORECASE)
_LIMITS: Final = b", ".join(
    b"x-ratelimit-%s-%s" % (kind, what)
    for what in (b"requests", b"tokens")
    for kind in (b"limit", b"remaining", b"reset")
)
_EXPOSED: Final = b"x-request-id, request-id, openai-processing-ms, retry-after, retry-after-ms, " + _LIMITS
_PREFLIGHT: Final[Headers] = [
    (b"access-control-allow-methods", b"GET, POST, PUT, DELETE, OPTIONS"),
    (b"access-control-allow-headers", b"*, Authorization"),
    (b"access-control-max-age", b"600"),
]

Refuse = Callable[[Exchange, int, str], Awaitable[None]]
"""Writes an error in the API's form: the exchange, the status, the sentence."""


def host_name(authority: str) -> str:
    """Return the host of a Host header or an origin, without its port; "" if it has another form.

    Example:
        >>> host_name("localhost:8200"), host_name("[::1]:80"), host_name("Example.org")
        ('localhost', '::1', 'example.org')
    """
    found = _AUTHORITY.fullmatch(authority)
    return (found[1] or found[2]).lower() if found else ""


def origin_allowed(origin: str, host: str, allowed: frozenset[str], *, local: bool) -> bool:
    """Tell whether a page of this origin may call: one of `allowed`, or the gateway's own page.

    The gateway's own page comes from the address that the request's `Host` header names. With `local`, all pages of
    this machine may call, and no other machine's name may stand in `host`.

    Example:
        >>> origin_allowed("http://localhost:3000", "localhost:8200", frozenset(), local=True)
        True
        >>> origin_allowed("https://evil.example", "api.example.org", frozenset(), local=False)
        False
    """
    if origin in allowed:
        return True
    found = _ORIGIN.fullmatch(origin)
    if found is None:
        return False
    return host_name(found[1]) in LOOPBACK if local else found[1].lower() == host.lower()


class Guard:
    """ASGI middleware around the whole application.

    Args:
        app: what is guarded.
        origins: origins of other machines whose pages may call, such as `https://chat.example.org`.
        refuse: writes an error in the API's form.
        local: whether no key is asked for, so that the gateway serves this machine alone: `Host` must name it, and
            its pages may call.
    """

    def __init__(self, app: ASGIApp, origins: frozenset[str], refuse: Refuse, *, local: bool) -> None:
        self._local = local
        self._app = app
        self._origins = origins
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request, then hand it on; every reply carries a request id."""
        if scope["type"] == "websocket":
            scope, send = {**scope, "method": "GET"}, denying(send)
        elif scope["type"] != "http":
            return
        began_s = time.perf_counter()
        headers = [pair for pair in scope["headers"] if pair[0] in (b"x-request-id", b"origin", b"host")]
        given = dict(headers)
        preflight = any(name == b"access-control-request-method" for name, _ in scope["headers"])
        request_id = given.get(b"x-request-id", b"")
        if not _REQUEST_ID.fullmatch(request_id):
            request_id = uuid.uuid4().hex.encode()
        origin = given.get(b"origin", b"").decode("latin-1")
        repeated = len(headers) > len(given)
        host = given.get(b"host", b"").decode("latin-1")
        allowed = not repeated and (not origin or origin_allowed(origin, host, self._origins, local=self._local))

        async def told(message: Message) -> None:
            exchange.started |= message["type"] in ("http.response.start", "websocket.accept")
            if message["type"] in ("http.response.start", "websocket.accept"):
                spent = str(round((time.perf_counter() - began_s) * 1e3)).encode()
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", request_id),
                    (b"request-id", request_id),  # the name that clients of the Messages API read
                    (b"openai-processing-ms", spent),
                    *(self._cors(origin) if origin and allowed else ()),
                ]
            await send(message)

        exchange = Exchange(scope, receive, told)
        try:
            await self._checked(exchange, given, scope, receive, told, allowed=allowed, preflight=preflight)
        except ClientGoneError:
            log.debug("request %s: the client went away", request_id.decode())
        except Exception:
            log.exception("request %s failed", request_id.decode())
            if not exchange.started:
                await self._refuse(exchange, 500, "The gateway failed; its log has the request id's traceback.")

    async def _checked(
        self,
        exchange: Exchange,
        given: dict[bytes, bytes],
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        allowed: bool,
        preflight: bool,
    ) -> None:
        host = host_name(given.get(b"host", b"").decode("latin-1"))
        if self._local and host not in LOOPBACK:
            await self._refuse(
                exchange, 403, "The Host header must name this machine: localhost or a loopback address."
            )
        elif not allowed:
            await self._refuse(
                exchange, 403, "This origin may not call, or a header came twice; the setting `origins` allows origins."
            )
        elif scope["method"] == "OPTIONS" and b"origin" in given and preflight:
            await exchange.reply(204, b"", _PREFLIGHT)
        else:
            await self._app(scope, receive, send)

    @staticmethod
    def _cors(origin: str) -> Headers:
        return [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-expose-headers", _EXPOSED),
            (b"vary", b"origin"),
        ]
