"""A long silence: comments keep proxies from closing the connection, and empty chunks keep clients waiting."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from openai.types.chat import ChatCompletionChunk

from tartlet_gateway.http.exchange import Exchange
from tartlet_gateway.openai import completions, sse
from tartlet_gateway.openai.replies import Reply
from tartlet_gateway.openai.requests import read_chat
from tartlet_gateway.runs.events import Delta, Event

CLIENTS_WAIT_S = 120
"""Some clients count parsed chunks only, and give up after this long without one."""
PROXIES_WAIT_S = 50
"""The shortest time after which a well-known proxy closes a silent connection."""


def test_silence_is_broken_before_anybody_gives_up() -> None:
    assert completions.COMMENT_S * 3 < PROXIES_WAIT_S
    assert completions.HEADERS_S + completions.COMMENT_S * completions.PULSES < CLIENTS_WAIT_S


async def test_a_prompt_that_takes_long_sends_comments_and_now_and_then_an_empty_chunk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(completions, "COMMENT_S", 0.01)
    monkeypatch.setattr(completions, "HEADERS_S", 0.01)
    sent: list[bytes] = []
    computed = asyncio.Event()

    async def send(message: dict[str, Any]) -> None:
        sent.append(message.get("body", b""))
        if sent.count(sse.COMMENT) == 2 * completions.PULSES:
            computed.set()

    async def run() -> AsyncIterator[Event]:
        await computed.wait()
        yield Delta(0, "done")

    request = read_chat(b'{"messages": [{"role": "user", "content": "Hi"}], "stream": true}')
    reply = Reply(form="chat", id="a", created_s=1, model="m", choices=1)
    exchange = Exchange({"type": "http", "headers": []}, cast("Any", None), cast("Any", send))
    async with asyncio.timeout(20):
        await completions._Stream(exchange, reply, request).write(run())
    events = b"".join(sent).decode().split("\n\n")
    assert events.count(": waiting") == 2 * completions.PULSES
    chunks = [json.loads(event.removeprefix("data: ")) for event in events if event.startswith("data: {")]
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas == [{"role": "assistant", "content": ""}, {}, {}, {"content": "done"}, {}]
    finishes = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert finishes == [None, None, None, None, "stop"]
