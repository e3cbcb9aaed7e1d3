"""Tokens of an OIDC issuer: who is let in for whom, and which forgeries are not. A real issuer on loopback."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import logging
import time
from collections.abc import AsyncIterator
from typing import Any, cast

import httpx
import pytest
from cryptography.hazmat.primitives import serialization

from tartlet_common.config.settings import GatewaySettings
from tartlet_common.errors.registry import InvalidConfig
from tartlet_gateway.access import fetching
from tartlet_gateway.access.gate import Gate
from tartlet_gateway.access.identities import Identities
from tartlet_gateway.access.oidc import PAUSE_S, SKEW_S, Keys, Oidc
from tartlet_gateway.access.rates import Rate
from tartlet_gateway.app import check_address, identities_of
from tartlet_gateway.openai.errors import ApiError
from tartlet_gateway.runs.caller import caller_of
from tests.gateway.access.issuer import AUDIENCE, Issuer, issuing


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@contextlib.asynccontextmanager
async def checked(claim: str = "tenant") -> AsyncIterator[tuple[Issuer, Identities, Clock]]:
    async with issuing() as issuer:
        clock = Clock()
        identities = Identities(None, [Oidc(issuer.url, AUDIENCE, claim, clock=clock)], clock)
        try:
            yield issuer, identities, clock
        finally:
            await identities.close()


async def refused(identities: Identities, token: str) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await identities.identify(token)
    assert token not in json.dumps(caught.value.body)
    return caught.value


def encoded(value: Any) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


async def test_a_token_acts_for_the_tenant_that_its_claim_names() -> None:
    async with checked() as (issuer, identities, _):
        issuer.new_key("two", "ES256")
        for key in ("one", "two"):
            found = await identities.identify(issuer.sign(key, sub="ada"))
            assert (found.tenant, found.subject, found.key_id) == ("a", "oidc:ada", "")
        assert (await identities.identify(issuer.sign(aud=["other", AUDIENCE]))).tenant == "a"
        assert issuer.asked == 1
    async with checked("https://example.org/team") as (issuer, identities, _):
        assert (await identities.identify(issuer.sign(**{"https://example.org/team": "b"}))).tenant == "b"


async def test_a_token_that_is_not_for_here_is_refused() -> None:
    async with checked() as (issuer, identities, _):
        now = time.time()
        for claims in (
            {"exp": now - SKEW_S - 5}, {"exp": None}, {"aud": "other"}, {"aud": None}, {"sub": None},
            {"nbf": now + SKEW_S + 60}, {"exp": "soon"},
        ):  # fmt: skip
            error = await refused(identities, issuer.sign(**claims))
            assert (error.status, error.code) == (401, "invalid_token"), claims
        assert (await identities.identify(issuer.sign(exp=now - SKEW_S + 20))).tenant == "a"
        for tenant in (None, "", "a/b", 7, ["a"], "x" * 65):
            error = await refused(identities, issuer.sign(tenant=tenant))
            assert (error.status, error.code) == (403, "no_tenant"), tenant
        elsewhere = await refused(identities, issuer.sign(iss="https://evil.example"))
        assert (elsewhere.status, elsewhere.code) == (401, "invalid_api_key")


async def test_no_signature_is_forged_by_another_algorithm() -> None:
    async with checked() as (issuer, identities, _):
        await identities.identify(issuer.sign())
        public = issuer.keys["one"][1].public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )  # fmt: skip
        issuer.more.append({"kty": "oct", "kid": "shared", "k": encoded(b"s" * 32), "alg": "HS256"})
        for head, secret in (
            ({"alg": "none", "kid": "one"}, None), ({"alg": "HS256", "kid": "one"}, public),
            ({"alg": "HS256", "kid": "shared"}, b"s" * 32), ({"alg": "ES256", "kid": "one"}, public),
            ({"alg": "PS256", "kid": "one"}, public), ({"alg": "RS256"}, public),
        ):  # fmt: skip
            text = f"{encoded(head)}.{encoded(issuer.claims())}"
            tag = b"" if secret is None else hmac.new(secret, text.encode(), hashlib.sha256).digest()
            assert (await refused(identities, f"{text}.{encoded(tag)}")).status == 401, head
        first, _, signature = issuer.sign().split(".")
        assert (await refused(identities, f"{first}.{encoded(issuer.claims(tenant='b'))}.{signature}")).status == 401
        embedded = {"alg": "RS256", "kid": "mine", "jwk": {"kty": "RSA"}, "jku": "https://evil.example/keys"}
        assert (await refused(identities, f"{encoded(embedded)}.{encoded(issuer.claims())}.{signature}")).status == 401


@pytest.mark.parametrize("token", ["", "x", "a.b.c", "..", "é.é.é", "tlk_wrong", "a" * 20_000, "\x00.\x00.\x00"])
async def test_what_is_no_token_is_refused(token: str) -> None:
    async with checked() as (issuer, identities, _):
        with pytest.raises(ApiError) as caught:
            await identities.identify(token)
        assert (caught.value.status, issuer.asked) == (401, 0)


async def test_new_keys_of_the_issuer_hold_and_a_flood_of_unknown_ones_asks_seldom() -> None:
    async with checked() as (issuer, identities, clock):
        await identities.identify(issuer.sign())
        issuer.new_key("two")
        clock.now_s += PAUSE_S
        assert (await identities.identify(issuer.sign("two"))).tenant == "a"
        assert issuer.asked == 2
        issuer.keys["none"] = issuer.keys.pop("one")
        for at in range(50):
            issuer.keys["wild"] = issuer.keys["none"]
            token = issuer.sign("wild", sub=str(at))
            del issuer.keys["wild"]
            assert (await refused(identities, token)).status == 401
        assert issuer.asked == 2
        clock.now_s += 301
        issuer.keys.pop("none")
        await identities.identify(issuer.sign("two", sub="new"))
        assert issuer.asked == 3


async def test_an_issuer_that_is_away_lets_nobody_new_in_and_known_keys_go_on() -> None:
    async with checked() as (issuer, identities, clock):
        issuer.away = True
        token = issuer.sign()
        error = await refused(identities, token)
        assert (error.status, error.code) == (503, "issuer_away")
        assert not await identities.still_valid(token)
        issuer.away = False
        clock.now_s += PAUSE_S
        assert (await identities.identify(token)).tenant == "a"
        issuer.away = True
        clock.now_s += 400
        assert (await identities.identify(issuer.sign(sub="other"))).tenant == "a"


async def test_the_gate_lets_tokens_in_and_names_their_subject(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        del receive
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(caller_of(scope).tenant).encode()})

    async with checked() as (issuer, identities, _):
        gate = Gate(app, identities, Rate(), 1)
        transport = httpx.ASGITransport(gate)
        token, expired = issuer.sign(sub="ada@example.org"), issuer.sign(exp=1)
        with caplog.at_level(logging.INFO):
            async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
                good = await client.get("/v1/models", headers={"authorization": f"Bearer {token}"})
                bad = await client.get("/v1/models", headers={"authorization": f"Bearer {expired}"})
        assert (good.status_code, good.text) == (200, "a")
        assert (bad.status_code, bad.json()["error"]["code"]) == (401, "invalid_token")
        assert bad.headers["www-authenticate"] == 'Bearer error="invalid_token"'
        lines = [json.loads(r.getMessage()) for r in caplog.records if r.name == "tartlet.audit"]
        assert [(line["tenant"], line["subject"], line["status"]) for line in lines] == [
            ("a", "oidc:ada@example.org", 200), (None, "", 401),
        ]  # fmt: skip
        assert not any(part in caplog.text for part in (token, expired))


@pytest.mark.parametrize("told", [{"keys": None}, {"keys": 7}, {"keys": {"a": 1}}, [], None, {"keys": [None, 7]}])
async def test_an_issuer_that_publishes_no_keys_is_away(told: Any) -> None:
    async with checked() as (issuer, identities, _):
        issuer.published = told
        error = await refused(identities, issuer.sign())
        assert (error.status, error.code) == (503, "issuer_away")


@pytest.mark.parametrize(
    "address", ["https://localhost/keys", "https://127.1:9/keys", "https://[::1]/keys", "http://["]
)
def test_keys_of_an_issuer_elsewhere_are_not_read_from_this_machine(address: str) -> None:
    with pytest.raises(InvalidConfig):
        fetching.check_address(address, "jwks_uri", local=fetching.is_local("https://issuer.example"))


async def test_an_https_issuer_makes_the_gateway_ask_nothing_of_this_machine() -> None:
    asked: list[str] = []

    class Answers:
        async def json(self, method: str, url: str) -> Any:
            assert method == "GET"
            asked.append(url)
            return {"issuer": "https://issuer.example", "jwks_uri": "https://127.0.0.1:6443/keys"}

    keys = Keys("https://issuer.example", cast("fetching.Fetcher", Answers()), Clock())
    with pytest.raises(fetching.AwayError):
        await keys.find("one")
    assert asked == ["https://issuer.example/.well-known/openid-configuration"]


@pytest.mark.parametrize(
    "fields",
    [
        {"oidc_issuer": "https://issuer.example"},
        {"oidc_issuer": "http://issuer.example", "oidc_audience": "x"},
    ],
)
def test_settings_that_would_let_strangers_in_are_refused(fields: dict[str, str]) -> None:
    with pytest.raises(InvalidConfig):
        identities_of(GatewaySettings(**fields))


def test_other_machines_are_served_where_tokens_are_asked_for() -> None:
    check_address(GatewaySettings(address="0.0.0.0:8200", oidc_issuer="https://issuer.example", oidc_audience="x"))
    check_address(GatewaySettings(address="0.0.0.0:8200", token_review=True))
    with pytest.raises(InvalidConfig):
        check_address(GatewaySettings(address="0.0.0.0:8200"))
