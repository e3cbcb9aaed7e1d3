"""Tokens of an OIDC issuer through a gateway's process: chats, refusals, the audit log, and keys that change."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx

from tartlet_gateway.access.oidc import PAUSE_S, SKEW_S
from tests.gateway.access.issuer import AUDIENCE, issuing
from tests.gateway.conftest import Gateway
from tests.gateway.processes import own_gateway

CHAT = {"model": "fake", "messages": [{"role": "user", "content": "374+588="}], "max_tokens": 2}
WAITS = "from inferlet import receive\nasync def main():\n    await receive()\n"


async def chat(http: httpx.AsyncClient, token: str) -> tuple[int, Any]:
    reply = await http.post("/v1/chat/completions", json=CHAT, headers={"authorization": f"Bearer {token}"})
    told = reply.json()
    return reply.status_code, told["error"]["code"] if reply.is_error else told["object"]


async def test_a_jwt_chats_and_no_other_token_does(gateway: Gateway, tmp_path: Path) -> None:
    async with issuing() as issuer:
        with own_gateway(gateway, tmp_path, OIDC_ISSUER=issuer.url, OIDC_AUDIENCE=AUDIENCE) as own:
            async with httpx.AsyncClient(base_url=own.url, timeout=60) as http:
                assert (await http.post("/v1/chat/completions", json=CHAT)).status_code == 401
                assert issuer.asked == 0
                ada = issuer.sign()
                assert await chat(http, ada) == (200, "chat.completion")
                now = time.time()
                assert await chat(http, issuer.sign(exp=now - SKEW_S - 5)) == (401, "invalid_token")
                assert await chat(http, issuer.sign(aud="another")) == (401, "invalid_token")
                assert await chat(http, issuer.sign(tenant=None)) == (403, "no_tenant")
                assert issuer.asked == 1

                mine, other = ({"authorization": f"Bearer {t}"} for t in (ada, issuer.sign(tenant="b")))
                launched = await http.post("/v1/programs", json={"source": WAITS}, headers=mine)
                program = f"/v1/programs/{launched.json()['id']}"
                assert (await http.get(program, headers=mine)).json()["tenant"] == "a"
                assert (await http.get(program, headers=other)).status_code == 404
                assert (await http.delete(program, headers=mine)).status_code == 200

                issuer.new_key("two", "ES256")  # the gateway reads the keys again, at the earliest after PAUSE_S
                rotated, deadline = issuer.sign("two"), time.monotonic() + PAUSE_S + 60
                while (answer := await chat(http, rotated)) != (200, "chat.completion"):
                    assert answer == (401, "invalid_token")
                    assert time.monotonic() < deadline
                    await asyncio.sleep(0.5)
                    rotated = issuer.sign("two", sub=f"ada {time.monotonic()}")  # a refusal is remembered for a while
                assert issuer.asked == 2
                assert await chat(http, ada) == (200, "chat.completion")
        lines = [json.loads(line[line.index("{") :]) for line in own.log.read_text().splitlines() if "audit" in line]
        chats = [(e["status"], e["tenant"], e["subject"]) for e in lines if e["path"] == "/v1/chat/completions"]
        assert (200, "a", "oidc:ada") in chats
        assert (401, None, "") in chats
        assert ada not in own.log.read_text()
