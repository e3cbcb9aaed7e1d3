"""Two tenants ask the same: neither can tell by tokens that were cached, or weren't computed, what the other asked."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

import tartlet
from tests.e2e.serving import control_of
from tests.gateway.conftest import Gateway
from tests.gateway.processes import OwnGateway
from tests.gateway.programs.test_programs import tenants  # noqa: F401 - a fixture

QUESTION = "What did the other tenant ask, and can I tell by how fast the answer begins? " * 8
WRITTEN = 4
PAGE = 32
CHAT, COMPLETION, RESPONSE, MESSAGE = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": f"chat: {QUESTION}"}], "max_tokens": WRITTEN},
    COMPLETION: {"prompt": f"completion: {QUESTION}", "max_tokens": WRITTEN},
    RESPONSE: {"input": f"response: {QUESTION}", "max_output_tokens": WRITTEN},
    MESSAGE: {
        "model": "fake",
        "messages": [{"role": "user", "content": f"message: {QUESTION}"}],
        "max_tokens": WRITTEN,
    },
}


def told(path: str, usage: dict[str, Any]) -> tuple[int, int]:
    """Return how many tokens a prompt has, and how many of them were cached, as each API tells them."""
    if path == MESSAGE:
        return usage["input_tokens"] + usage["cache_read_input_tokens"], usage["cache_read_input_tokens"]
    if path == RESPONSE:
        return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("path", list(BODIES))
async def test_no_tenant_gets_what_another_computed(
    gateway: Gateway,
    tenants: tuple[OwnGateway, str, str],  # noqa: F811
    path: str,
) -> None:
    own, *keys = tenants

    async def computed(key: str) -> tuple[int, int, int]:
        """Ask, and return the tokens of the prompt, those cached, and those that the engines computed for it."""
        before = await engine_tokens()
        headers = {"authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=own.url, headers=headers, timeout=30) as http:
            reply = await http.post(path, json=BODIES[path] | {"temperature": 0})
        assert reply.status_code == 200, reply.text
        return *told(path, reply.json()["usage"]), await engine_tokens() - before

    async with tartlet.AsyncClient(gateway.server.address) as client:

        async def engine_tokens() -> int:
            return sum(int(engine["computed_tokens"]) for engine in (await control_of(client))["engines"])

        first, again, other, other_again = [await computed(key) for key in (keys[0], keys[0], keys[1], keys[1])]
    prompt = first[0]
    assert first[:2] == other[:2] == (prompt, 0)
    assert prompt + WRITTEN - 1 <= first[2] == other[2]  # no token less for being the second to ask
    for told_again in (again, other_again):  # the cache is there: each finds its own question in it
        assert prompt - 2 * PAGE <= told_again[1] < prompt
        assert told_again[2] == first[2] - told_again[1]
