"""Sessions: the headers and fields that clients send already make runs one program for the scheduler."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

import tartlet
from tartlet_gateway.runs.sessions import BadSessionError, session_of
from tests.gateway.conftest import Gateway
from tests.gateway.processes import OwnGateway
from tests.gateway.programs.test_programs import launch, say, tenants  # noqa: F401 - a fixture
from tests.gateway.test_chat import MESSAGES, chat

WORKS = """
from inferlet import Context, receive, send

async def main(args):
    async with Context() as ctx:
        ctx.fill("work " * 8)
        async for _ in ctx.generate(max_tokens=24):
            pass
    send("worked")
    await receive()
"""


def running(gateway: Gateway, program: str, done: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """What control says of a running program, once it fulfils `done`."""
    deadline = time.monotonic() + 20
    with tartlet.Client(gateway.server.address) as client:
        while True:
            told: dict[str, Any] = {p["id"]: p for p in client.state().control["programs"]}.get(program, {})
            if told and done(told):
                return told
            assert time.monotonic() < deadline, told
            time.sleep(0.05)


def worked(gateway: Gateway, http: httpx.Client, headers: dict[str, str], **fields: Any) -> dict[str, Any]:
    """Runs a program that computes, and returns what control says of it then; the program ends behind this."""
    reply = http.post("/v1/programs", json={"source": WORKS, **fields}, headers=headers)
    assert reply.status_code == 201, reply.text
    program = reply.json()["id"]
    told = running(gateway, program, lambda p: p["sampled_tokens"] >= 24 and p["in_flight"] == 0)
    say(http, program, "bye")
    assert http.get(f"/v1/programs/{program}/result").json()["success"]
    return told


def test_runs_of_one_session_add_up_to_one_program(gateway: Gateway, http: httpx.Client) -> None:
    mine = {"x-session-id": "adds-up"}
    first = worked(gateway, http, mine)
    second = worked(gateway, http, mine)
    child = worked(gateway, http, {"x-session-id": "adds-up-child", "x-parent-session-id": "adds-up"})
    other = worked(gateway, http, {"x-session-id": "another"})
    alone = worked(gateway, http, {})
    assert first["session"] == second["session"] != other["session"]
    assert child["session"] not in (first["session"], "", other["session"])
    assert alone["session"] == ""
    assert 0 < first["session_tokens"] < second["session_tokens"] < child["session_tokens"]
    assert max(other["session_tokens"], alone["session_tokens"]) <= first["session_tokens"]


def test_a_session_that_was_started_ends_when_it_is_told_to(gateway: Gateway, http: httpx.Client) -> None:
    session = http.post("/v1/sessions").json()["id"]
    first = worked(gateway, http, {}, session=session)
    second = worked(gateway, http, {"x-tartlet-session": session})
    assert second["session"] == first["session"]
    assert second["session_tokens"] > first["session_tokens"]
    assert http.delete(f"/v1/sessions/{session}").json() == {"object": "session", "id": session, "deleted": True}
    again = worked(gateway, http, {}, session=session)
    assert again["session"] == first["session"]
    assert again["session_tokens"] < second["session_tokens"]
    last = worked(gateway, http, {"x-tartlet-session": session, "x-tartlet-session-final": "true"})
    assert last["session_tokens"] > again["session_tokens"]
    assert worked(gateway, http, {}, session=session)["session_tokens"] < last["session_tokens"]


def test_two_tenants_with_one_name_have_two_sessions(
    gateway: Gateway,
    tenants: tuple[OwnGateway, str, str],  # noqa: F811
) -> None:
    own, *keys = tenants
    headers = {"x-tartlet-session": "the-same"}
    told = []
    for key in (*keys, keys[1]):
        with httpx.Client(base_url=own.url, headers={"x-api-key": key}, timeout=30) as http:
            told.append(worked(gateway, http, headers))
            if key == keys[0]:
                continue
            assert http.delete("/v1/sessions/the-same").status_code == 200
    a, b, b_again = told
    assert a["session"] != b["session"] == b_again["session"]
    with httpx.Client(base_url=own.url, headers={"x-api-key": keys[0]}, timeout=30) as http:
        assert (
            worked(gateway, http, headers)["session_tokens"] > a["session_tokens"]
        )  # b's end of its session left a's alone
    assert b_again["session_tokens"] <= b["session_tokens"] < a["session_tokens"] * 2  # each began anew


def test_chats_name_their_session_too(gateway: Gateway, http: httpx.Client) -> None:
    assert http.put("/v1/inferlets/waits", json={"source": WORKS}).status_code == 200
    body = {"model": "fake/waits", "messages": MESSAGES, "stream": True, "prompt_cache_key": "a-thread"}
    with http.stream("POST", "/v1/chat/completions", json=body) as reply:
        lines = reply.iter_lines()  # kept: the reply closes with it
        program = next(lines).partition('"id":"chatcmpl-')[2][:36]
        told = running(gateway, program, lambda _: True)
    assert told["session"] == session_of([], {"prompt_cache_key": "a-thread"}, None).id
    long = chat(http, prompt_cache_key="x" * 257)
    assert (long.status_code, long.json()["error"]["param"]) == (400, "prompt_cache_key")
    assert chat(http, user="ada", metadata={"session_id": "m"}).status_code == 200
    assert launch(http, "def main(args):\n    pass\n", session="s", parent_session="p")


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({"x-dynamo-session-id": "s"}, {}),
        ({"x-claude-code-session-id": "s", "x-session-id": "t"}, {"prompt_cache_key": "k"}),
        ({"x-session-affinity": "s", "x-session-id": "t"}, {}),
        ({"session-id": "s", "thread-id": "t"}, {}),
        ({"thread-id": "s"}, {"prompt_cache_key": "k"}),
        ({"session_id": "s"}, {}),
        ({"x-session-id": "s"}, {}),
        ({"x-conversation-id": "s"}, {}),
        ({}, {"conversation": "s", "prompt_cache_key": "k"}),
        ({}, {"prompt_cache_key": "s"}),
        ({}, {"metadata": {"session_id": "s"}}),
    ],
)
def test_what_clients_send_names_a_session(headers: dict[str, str], fields: dict[str, Any]) -> None:
    def named(h: dict[str, str], f: dict[str, Any], tenant: str = "a") -> str:
        return session_of([(k.encode(), v.encode()) for k, v in h.items()], f, tenant).id

    first = next(iter(headers), None)
    alone = named({first: "s"}, {}) if first else named({}, dict([next(iter(fields.items()))]))
    assert named(headers, fields) == alone != ""
    assert named(headers, fields, "b") != alone
    long = "s" * 257
    with pytest.raises(BadSessionError):
        named({first: long} if first else {}, {} if first else {"conversation": long})
