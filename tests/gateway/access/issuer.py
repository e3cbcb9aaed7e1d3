"""An OIDC issuer on loopback that publishes keys and signs tokens."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, rsa

AUDIENCE = "tartlet"


@dataclass
class Issuer:
    """The issuer; `asked` counts how often its keys were read, and `published` stands in place of them."""

    url: str = ""
    keys: dict[str, Any] = field(default_factory=dict)
    more: list[dict[str, Any]] = field(default_factory=list)
    asked: int = 0
    away: bool = False
    published: Any = ...

    def new_key(self, name: str, kind: str = "RS256") -> None:
        made: Any = ec.generate_private_key(ec.SECP256R1()) if kind == "ES256" else _rsa()
        self.keys[name] = (kind, made)

    def sign(self, key: str = "one", **claims: Any) -> str:
        kind, private = self.keys[key]
        return jwt.encode(self.claims(**claims), private, kind, headers={"kid": key})

    def claims(self, **claims: Any) -> dict[str, Any]:
        now = int(time.time())
        told = {"iss": self.url, "aud": AUDIENCE, "sub": "ada", "tenant": "a", "iat": now, "exp": now + 600} | claims
        return {name: value for name, value in told.items() if value is not None}

    async def configuration(self, request: web.Request) -> web.Response:
        del request
        return web.json_response({"issuer": self.url, "jwks_uri": f"{self.url}/keys"})

    async def jwks(self, request: web.Request) -> web.Response:
        del request
        self.asked += 1
        if self.away:
            return web.Response(status=503)
        if self.published is not ...:
            return web.json_response(self.published)
        published = [self._published(name, kind, made) for name, (kind, made) in self.keys.items()]
        return web.json_response({"keys": [*published, *self.more]})

    def _published(self, name: str, kind: str, made: Any) -> dict[str, Any]:
        algorithm: Any = jwt.get_algorithm_by_name(kind)
        jwk: dict[str, Any] = json.loads(algorithm.to_jwk(made.public_key()))
        return jwk | {"kid": name, "use": "sig"}


def _rsa() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@contextlib.asynccontextmanager
async def issuing() -> AsyncIterator[Issuer]:
    issuer = Issuer()
    issuer.new_key("one")
    app = web.Application()
    app.router.add_get("/.well-known/openid-configuration", issuer.configuration)
    app.router.add_get("/keys", issuer.jwks)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    issuer.url = f"http://{host}:{port}"
    try:
        yield issuer
    finally:
        await runner.cleanup()
