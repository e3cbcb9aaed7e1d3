"""A recorded run over HTTP: its calls with their lines, what it was told, page by page, texts only if asked for."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

import tartlet
from tests.e2e.serving import out
from tests.gateway.conftest import Gateway
from tests.gateway.processes import own_gateway

SECRET = "the prompt that nobody else may read"
TALKS = f"""from inferlet import Context, receive, send

async def main(args):
    async with Context(seed=1) as ctx:
        ctx.fill("{SECRET}")
        send(await ctx.generate_until(max_tokens=6, eos=False))
        said = await receive()
        send(said)
    if args == ["fails"]:
        raise ValueError(said)
    await receive()
"""
LAST = "the last message"


def launch(http: httpx.Client, **fields: Any) -> str:
    reply = http.post("/v1/programs", json={"source": TALKS, "filename": "talks.py", **fields})
    assert reply.status_code == 201, reply.text
    program: str = reply.json()["id"]
    assert http.post(f"/v1/programs/{program}/messages", json={"text": LAST}).status_code == 200
    return program


def journal(http: httpx.Client, program: str, **params: Any) -> dict[str, Any]:
    reply = http.get(f"/v1/programs/{program}/journal", params=params)
    assert reply.status_code == 200, reply.text
    page: dict[str, Any] = reply.json()
    return page


def waiting(http: httpx.Client, program: str) -> dict[str, Any]:
    """The whole journal, once the program waits for a second message."""
    deadline = time.monotonic() + 240
    while True:
        page = journal(http, program, count=200)
        asked = [call["call"] for turn in page["turns"] for call in turn["calls"] or ()]
        if asked.count("receive") == 2:
            return page
        assert time.monotonic() < deadline, page


def test_a_running_programs_turns_are_told_without_texts(http: httpx.Client) -> None:
    program = launch(http)
    page = waiting(http, program)
    assert (page["object"], page["id"], page["why_no_calls"]) == ("journal", program, "")
    assert (page["next"], page["ended"]) == (None, None)
    turns = page["turns"]
    assert [turn["turn"] for turn in turns] == list(range(1, page["total"] + 1))
    calls = [call for turn in turns for call in turn["calls"]]
    lines = {call["call"]: call["line"] for call in calls if call["line"]}
    assert lines["receive"] == "talks.py:11"
    assert lines["send"] == "talks.py:8"
    told = [answer for turn in turns[:-1] for answer in turn["told"]]
    (received,) = [answer for answer in told if answer["call"] == "receive"]
    assert (received["event"], received["bytes"]) == ("result", len(LAST))
    assert all(turn["at_s"] <= after["at_s"] for turn, after in itertools.pairwise(turns[:-1]))
    assert [m["bytes"] for turn in turns for m in turn["messages"]] == [len(LAST)]
    assert "told" not in turns[-1]
    assert SECRET not in str(page)
    assert LAST not in str(page)


def test_texts_are_told_if_asked_and_pages_join(http: httpx.Client) -> None:
    program = launch(http)
    page = waiting(http, program)
    whole = journal(http, program, count=200, texts="true")
    told = [
        answer.get("text") for turn in whole["turns"][:-1] for answer in turn["told"] if answer["call"] == "receive"
    ]
    assert told == [LAST]
    assert SECRET in [call.get("text") for turn in whole["turns"] for call in turn["calls"]]
    first = journal(http, program, count=3)
    assert [turn["turn"] for turn in first["turns"]] == [1, 2, 3]
    rest = journal(http, program, first=first["next"], count=200)
    assert first["turns"] + rest["turns"] == page["turns"]
    beyond = journal(http, program, first=page["total"] + 1)
    assert (beyond["turns"], beyond["next"]) == ([], None)


def test_a_failed_run_tells_its_error_and_a_client_reads_the_same(gateway: Gateway, http: httpx.Client) -> None:
    program = launch(http, args=["fails"])
    assert not http.get(f"/v1/programs/{program}/result").json()["success"]
    page = journal(http, program, count=200)
    assert page["ended"]["success"] is False
    assert page["ended"]["error"]["name"] == "ProgramFailed"
    assert page["turns"][-1]["calls"] is not None
    assert LAST not in str(page)
    with tartlet.Client(gateway.url) as over_http, tartlet.Client(gateway.server.address) as over_grpc:
        assert over_http.read_journal(program, count=200) == over_grpc.read_journal(program, count=200) == page


@pytest.mark.parametrize(
    "params", [{"first": "0"}, {"first": "x"}, {"count": "0"}, {"count": "201"}, {"first": "9" * 30}]
)
def test_wrong_numbers_of_turns_are_refused(http: httpx.Client, params: dict[str, str]) -> None:
    reply = http.get(f"/v1/programs/{'0' * 8}-0000-0000-0000-{'0' * 12}/journal", params=params)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, next(iter(params)))


def test_programs_without_a_journal_are_told_apart_from_unknown_ones(http: httpx.Client) -> None:
    program = launch(http, durability="off")
    error = http.get(f"/v1/programs/{program}/journal")
    assert (error.status_code, error.json()["error"]["tartlet"]["name"]) == (404, "NoJournal")
    for unknown in (f"{'0' * 8}-0000-0000-0000-{'0' * 12}", "..%2f..%2fetc", "x"):
        reply = http.get(f"/v1/programs/{unknown}/journal")
        assert reply.status_code == 404
        assert reply.json()["error"].get("tartlet", {}).get("name") in (None, "UnknownProgram")


def test_the_refusal_of_a_dropped_journal_names_the_setting_that_keeps_it(http: httpx.Client) -> None:
    program = http.post("/v1/programs", json={"source": "async def main():\n    return 1\n"}).json()["id"]
    assert http.get(f"/v1/programs/{program}/result").json()["success"]
    deadline = time.monotonic() + 240
    while (reply := http.get(f"/v1/programs/{program}/journal")).status_code == 200:
        assert time.monotonic() < deadline
    error = reply.json()["error"]["tartlet"]
    assert (reply.status_code, error["name"], "keep_journals" in error["fields"]["why"]) == (404, "NoJournal", True)


def test_another_tenants_journal_is_an_unknown_programs(gateway: Gateway, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    keys = [
        out(gateway.server.run_dir, "keys", "create", "--tenant", tenant, "--file", str(file)).strip()
        for tenant in ("a", "b")
    ]
    with own_gateway(gateway, tmp_path, KEYS=str(file)) as own:
        mine, other = (httpx.Client(base_url=own.url, timeout=120, headers={"x-api-key": key}) for key in keys)
        with mine, other:
            program = launch(mine)
            assert waiting(mine, program)["id"] == program
            theirs = other.get(f"/v1/programs/{program}/journal")
            nobodys = other.get(f"/v1/programs/{'0' * 8}-0000-0000-0000-{'0' * 12}/journal")
            assert theirs.status_code == nobodys.status_code == 404
            for reply in (theirs, nobodys):
                assert reply.json()["error"]["tartlet"]["name"] == "UnknownProgram"
