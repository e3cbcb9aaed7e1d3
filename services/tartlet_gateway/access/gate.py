"""ASGI middleware that asks for a key or a token, bounds tenants' rates, and notes each request in the audit log."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tartlet_common.errors.registry import Overloaded
from tartlet_gateway.access.audit import RefusedRequests, note
from tartlet_gateway.access.identities import Identities
from tartlet_gateway.access.identity import Identity
from tartlet_gateway.access.rates import Rate, Refusal, Tenant, share
from tartlet_gateway.http.exchange import ClientGoneError, Exchange, Headers, Outcome
from tartlet_gateway.http.subprotocol import key_of
from tartlet_gateway.openai.errors import JSON, ApiError, answer
from tartlet_gateway.programs.errors import TypedError
from tartlet_gateway.runs.caller import Caller, Place, set_caller

OPEN: Final = frozenset({"/health", "/"})
"""Paths that need no key."""
OPEN_BELOW: Final = "/page/"
"""Paths below it need none either: they are the web page's files, which hold no data."""
COUNTED_BELOW: Final = "/v1/responses/"
"""Requests below it count for the rate of requests, whatever their method: long responses are read there."""
RUNS_NOTHING: Final = re.compile(r"/v1/(programs/[^/]+/messages|responses/[^/]+/cancel|sessions)")
"""POST requests that count for the rate of requests alone: programs that run must get their messages."""
LAUNCHES: Final = "/v1/programs"
"""Where programs are launched; the body may have the idempotency key of one that counts already."""
NO_LONGER_ALLOWED: Final = 1008
"""The close code of a WebSocket whose key is no longer valid."""
MOST_OPEN: Final = 1000
"""Requests, streams and WebSockets that one tenant may have open at a gateway."""
MOST_TENANTS: Final = 4096
"""Tenants that a gateway remembers though nothing of theirs runs, and nothing counts against their bounds."""


class Gate:
    """Lets requests with a valid key or token through, each for its tenant.

    Args:
        app: what is guarded.
        identities: those who are let in.
        default: what a tenant may do that the file of keys doesn't name, over all gateways.
        replicas: how many gateways share a tenant's rate.
        clock: seconds that never jump back.
        refused: writes down those who aren't let in; None: one of the gate's own.
    """

    def __init__(
        self,
        app: ASGIApp,
        identities: Identities,
        default: Rate,
        replicas: int,
        clock: Callable[[], float] = time.monotonic,
        refused: RefusedRequests | None = None,
    ) -> None:
        self._app = app
        self._identities = identities
        self._default = default
        self._replicas = replicas
        self._clock = clock
        self._refused = refused or RefusedRequests()
        self._tenants: dict[str, Tenant] = {}  # those used last behind
        self._open: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["path"] in OPEN or scope["path"].startswith(OPEN_BELOW):
            await self._app(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send)
        text = _given(exchange) or key_of(scope)
        try:
            identity = await self._identities.identify(text)
        except ApiError as e:
            await answer(exchange, e)
            self._refused.note(scope, e.status)
            return
        await self._admitted(identity, scope, *self._while_valid(text, receive, send))

    def _while_valid(self, text: str, receive: Receive, send: Send) -> tuple[Receive, Send]:
        """Return `receive` and `send` that end a WebSocket or a stream once its key is revoked or has expired."""

        async def heard() -> Message:
            message = await receive()
            if message["type"] == "websocket.receive" and not await self._identities.still_valid(text):
                await send({"type": "websocket.close", "code": NO_LONGER_ALLOWED})
                return {"type": "websocket.disconnect", "code": NO_LONGER_ALLOWED}
            return message

        async def told(message: Message) -> None:
            goes_on = message["type"] == "websocket.send" or message.get("more_body")
            if goes_on and not await self._identities.still_valid(text):
                if message["type"] == "websocket.send":
                    await send({"type": "websocket.close", "code": NO_LONGER_ALLOWED})
                raise ClientGoneError
            await send(message)

        return heard, told

    async def _admitted(self, identity: Identity, scope: Scope, receive: Receive, send: Send) -> None:
        began_s = self._clock()
        caller = Caller(tenant=identity.tenant, key_id=identity.key_id, subject=identity.subject)
        set_caller(scope, caller)
        tenant = self._tenant(identity.tenant, began_s)
        admission = _Admission(tenant, self._clock)
        caller.admit = admission.admit
        caller.claim = admission.claim
        caller.outlive = admission.outlive
        caller.hold = admission.hold
        outcome, accepted = Outcome(scope), 0

        async def told(message: Message) -> None:
            nonlocal accepted
            outcome.see(message)
            if message["type"] in ("http.response.start", "websocket.accept"):
                accepted = 101 if message["type"] == "websocket.accept" else 0
                message["headers"] = [*message.get("headers", ()), *tenant.headers(self._clock())]
            await send(message)

        if self._open[identity.tenant] >= MOST_OPEN:
            error = ApiError(429, f"{MOST_OPEN} requests are open: end some of them first.", code="too_many_open")
            await answer(Exchange(scope, receive, told), error)
            note(scope, caller, outcome.status, 0.0)
            return
        self._open[identity.tenant] += 1
        try:
            if scope["method"] == "POST" and not RUNS_NOTHING.fullmatch(scope["path"]):
                admission.admit(waits=scope["path"] == LAUNCHES)
            elif _is_counted(scope) and (refused := tenant.ask(began_s)) is not None:
                raise _TooManyError(refused)
            await self._app(scope, receive, told)
        except _TooManyError as e:
            await answer(Exchange(scope, receive, told), e)
        finally:
            self._open[identity.tenant] -= 1
            if not self._open[identity.tenant]:
                del self._open[identity.tenant]
            if caller.tokens and caller.program_id and not tenant.is_first(caller.program_id):
                caller.tokens = 0
            admission.end(caller.tokens)
            note(scope, caller, accepted or outcome.status, self._clock() - began_s)

    def _tenant(self, name: str, now_s: float) -> Tenant:
        limits = self._identities.limits(name)
        default = self._default
        rate = Rate(
            limits.requests_per_minute or default.requests_per_minute,
            limits.tokens_per_minute or default.tokens_per_minute,
            limits.concurrency or default.concurrency,
        )
        rate = share(rate, self._replicas)
        tenant = self._tenants.pop(name, None) or Tenant(rate, now_s)
        tenant.change(rate, now_s)
        self._tenants[name] = tenant  # behind those that were used before
        if len(self._tenants) > MOST_TENANTS:
            self._forget(now_s)
        return tenant

    def _forget(self, now_s: float) -> None:
        """Forget two of the tenants that were used longest ago, so that new ones don't add up; not one that is busy."""
        for name in list(islice(self._tenants, 2)):
            tenant = self._tenants.pop(name)
            if name in self._open or not tenant.at_rest(now_s):
                self._tenants[name] = tenant


class _Admission:
    """What one request counts against its tenant's bounds."""

    def __init__(self, tenant: Tenant, clock: Callable[[], float]) -> None:
        self._tenant = tenant
        self._clock = clock
        self._admitted = self._outlived = self._waits = False

    def admit(self, key: str = "", *, waits: bool = False) -> None:
        """Count the request, or a launch of its connection with an idempotency key.

        `waits`: one for which there is no place waits for `claim`, if a key may name a program that has a place.

        Raises:
            _TooManyError: the tenant may have none now.
        """
        if self._admitted:  # the launch before this one has failed
            self._tenant.end(0, self._clock())
            self._admitted = False
        refused = self._tenant.admit(self._clock(), key)
        if refused is None:
            self._admitted, self._waits = True, False
        elif waits and refused.what == "concurrency" and self._tenant.keys:
            self._waits = True
        else:
            raise _TooManyError(refused)

    def claim(self, key: str) -> None:
        """Count the request if it waits for that, now that its idempotency key is known.

        Raises:
            _TooManyError: the tenant may have none now.
        """
        if self._waits:
            self.admit(key)

    def outlive(self) -> Callable[[int], None]:
        """Let the request's run count on its own; return what is to be called with its tokens at its end."""
        end = partial(self._end, admitted=self._admitted)
        self._admitted, self._outlived = False, True
        return end

    def hold(self, key: str) -> Place | None:
        """Let the program that the request launches with a key count until its end, in place of the request."""
        if not (self._admitted and self._tenant.rate.concurrency):
            return None
        self._admitted = False
        return Place(self._tenant.hold(key), lambda: self._tenant.refusals)

    def end(self, tokens: int) -> None:
        """Count the request as ended."""
        if not self._outlived:
            self._end(tokens, admitted=self._admitted)

    def _end(self, tokens: int, *, admitted: bool) -> None:
        if admitted:
            self._tenant.end(tokens, self._clock())
        else:
            self._tenant.count(tokens, self._clock())


def _is_counted(scope: Scope) -> bool:
    """Return whether a request that runs nothing counts for the rate of requests."""
    path: str = scope["path"]
    return scope["method"] == "POST" or path.startswith(COUNTED_BELOW)


def _given(exchange: Exchange) -> str:
    """Return the key that a request brings, "" for none."""
    bearer = (exchange.header(b"authorization") or b"").decode("latin-1")
    scheme, _, token = bearer.partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return (exchange.header(b"x-api-key") or b"").decode("latin-1").strip()


class _TooManyError(ApiError):
    """A tenant is over a bound. Clients wait as long as its headers say; some read the seconds in its text."""

    def __init__(self, refusal: Refusal) -> None:
        wait_s = max(refusal.wait_s, 0.001)
        per = "at once" if refusal.what == "concurrency" else f"{refusal.what} a minute"
        told = f"Rate limit reached: this tenant may have {refusal.limit:g} {per} here."
        if refusal.programs:
            told += (
                f" Launched programs count until they end, and {refusal.programs} of them run: wait for their end, or "
                "end one with DELETE /v1/programs/ID. GET /v1/programs lists them."
            )
        super().__init__(429, f"{told} Please try again in {wait_s:.3g}s.", code="rate_limit_exceeded")
        self._refusal = refusal
        self._wait_s = wait_s

    @property
    def headers(self) -> Headers:
        """The reply's headers, with the time that is to be waited."""
        seconds, ms = math.ceil(self._wait_s), math.ceil(self._wait_s * 1e3)
        return [JSON, (b"retry-after", str(seconds).encode()), (b"retry-after-ms", str(ms).encode())]

    @property
    def body(self) -> dict[str, Any]:
        """The reply's JSON object, with the number and the fields of Overloaded."""
        refusal = self._refusal
        what = f"what a tenant may have at this gateway ({refusal.what})"
        if refusal.programs:
            what = (
                f"what a tenant may have at once at this gateway, with {refusal.programs} launched programs that run,"
            )
        typed = TypedError(Overloaded(what=what, limit=refusal.limit)).body["error"]["tartlet"]
        return {"error": super().body["error"] | {"tartlet": typed}}
