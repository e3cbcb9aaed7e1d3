"""Tokens of an OIDC issuer: signed JWTs, checked with the keys that the issuer publishes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import jwt

from tartlet_common.errors.registry import InvalidConfig
from tartlet_gateway.access.fetching import AwayError, Fetcher, check_address, is_local
from tartlet_gateway.access.identity import Identity, UnauthorizedError, checked_tenant
from tartlet_gateway.openai.errors import ApiError

log = logging.getLogger("tartlet.gateway")

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures by a private key. `none`, and those by a shared secret, are refused: the published keys are no secret."""
SKEW_S: Final = 60.0
"""How far the issuer's clock may be off."""
FRESH_S: Final = 300.0
"""How long the published keys are used before the issuer is asked again."""
PAUSE_S: Final = 10.0
"""The issuer isn't asked more often, whatever keys tokens name."""
_REASONS: Final[dict[type[jwt.PyJWTError], str]] = {
    jwt.ExpiredSignatureError: "it has expired; get a new one",
    jwt.ImmatureSignatureError: "it isn't valid yet; look at the clocks",
    jwt.InvalidAudienceError: "it is for another audience; ask the issuer for one with the audience {audience!r}",
    jwt.MissingRequiredClaimError: "it lacks one of the claims exp, iss, aud and sub",
}
"""Why a token is refused; any other reason says nothing more than that."""


class Keys:
    """The keys that an issuer publishes. Those of before stay in use while the issuer doesn't answer."""

    def __init__(self, issuer: str, fetcher: Fetcher, clock: Callable[[], float]) -> None:
        self._issuer = issuer
        self._fetcher = fetcher
        self._clock = clock
        self._known: dict[str, jwt.PyJWK] = {}
        self._read_s = self._asked_s = -FRESH_S
        self._why = "it wasn't asked yet"
        self._lock = asyncio.Lock()

    async def find(self, key_id: str) -> jwt.PyJWK | None:
        """Return the key of this id; None: the issuer has none.

        Raises:
            AwayError: no keys could be read so far.
        """
        if key_id not in self._known or self._clock() - self._read_s > FRESH_S:
            async with self._lock:
                if (key_id not in self._known or self._clock() - self._read_s > FRESH_S) and self._may_ask():
                    await self._read()
        if not self._known:
            raise AwayError(self._why)
        return self._known.get(key_id)

    def _may_ask(self) -> bool:
        now_s = self._clock()
        if now_s - self._asked_s < PAUSE_S:
            return False
        self._asked_s = now_s
        return True

    async def _read(self) -> None:
        try:
            about = await self._fetcher.json("GET", f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
            if not isinstance(about, dict) or about.get("issuer") != self._issuer:
                raise AwayError("its configuration names another issuer")
            url = str(about.get("jwks_uri"))
            check_address(url, "jwks_uri", local=is_local(self._issuer))
            told = await self._fetcher.json("GET", url)
            known = _keys_of(told)
            if not known:
                raise AwayError("it publishes no key with which tokens can be checked")
            self._known, self._read_s = known, self._clock()
        except (AwayError, InvalidConfig) as e:
            self._why = str(e)
            log.warning("the keys of the OIDC issuer can't be read: %s", e)


def _keys_of(told: Any) -> dict[str, jwt.PyJWK]:
    """Return the public keys of a JWKS by their ids; those that can't check a signature are left out."""
    known: dict[str, jwt.PyJWK] = {}
    entries = told.get("keys") if isinstance(told, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, dict) or entry.get("kty") == "oct" or entry.get("use", "sig") != "sig":
            continue
        try:
            known[str(entry.get("kid", ""))] = jwt.PyJWK(entry)
        except (jwt.PyJWTError, ValueError, TypeError) as e:
            log.info("a key of the OIDC issuer is left out: %s", type(e).__name__)
    return known


class Oidc:
    """Checks tokens of one issuer."""

    def __init__(
        self,
        issuer: str,
        audience: str,
        claim: str,
        authority: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin without keys: the first token has them read.

        Raises:
            InvalidConfig: the audience isn't named, or the issuer isn't https.
        """
        if not audience:
            detail = "oidc_audience: name the audience, else tokens for other services would let callers in"
            raise InvalidConfig(role="gateway", detail=detail)
        check_address(issuer, "oidc_issuer")
        self._issuer = issuer
        self._audience = audience
        self._claim = claim
        self._fetcher = Fetcher(authority)
        self._keys = Keys(issuer, self._fetcher, clock)

    def takes(self, token: str) -> bool:
        """Tell whether a token says that it is of this issuer."""
        return issuer_of(token) == self._issuer

    async def identify(self, token: str) -> Identity:
        """Return whose token it is."""
        try:
            head = jwt.get_unverified_header(token)
        except jwt.PyJWTError as e:
            raise UnauthorizedError("The token isn't valid: it is malformed.") from e
        if head.get("alg") not in ALGORITHMS:
            raise UnauthorizedError("The token isn't valid: its signature must be by a private key, such as RS256.")
        try:
            key = await self._keys.find(str(head.get("kid", "")))
        except AwayError as e:
            raise ApiError(503, "The token can't be checked now: its issuer doesn't answer.", code="issuer_away") from e
        if key is None or key.algorithm_name != head["alg"]:
            raise UnauthorizedError("The token isn't valid: its issuer publishes no such key.")
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                audience=self._audience,
                issuer=self._issuer,
                leeway=SKEW_S,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except jwt.PyJWTError as e:
            why = _REASONS.get(type(e), "its signature or a claim is wrong").format(audience=self._audience)
            raise UnauthorizedError(f"The token isn't valid: {why}.") from e
        tenant = checked_tenant(claims.get(self._claim), f"claim {self._claim!r}")
        return Identity(tenant, subject=f"oidc:{claims['sub']}"[:256], expires_s=float(claims["exp"]) + SKEW_S)

    async def close(self) -> None:
        """Close all connections."""
        await self._fetcher.close()


def issuer_of(token: str) -> str:
    """Return the issuer that a JWT names, unchecked; "" for none."""
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, RecursionError):
        return ""
    issuer = claims.get("iss")
    return issuer if isinstance(issuer, str) else ""
