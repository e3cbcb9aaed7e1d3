"""Streams that break: a client goes on behind its last event, at any gateway, and gets the same events."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.gateway.conftest import Gateway
from tests.gateway.processes import OwnGateway, own_gateway
from tests.gateway.responses.stepwise import program_of, say

Event = dict[str, Any]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def events(reply: httpx.Response) -> Iterator[Event]:
    assert reply.status_code == 200, reply.read()
    for line in reply.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def begin(http: httpx.Client, words: list[str], *, upto: int, **fields: Any) -> list[Event]:
    """Begin a streamed response, say words, and leave behind the event `upto`."""
    told: list[Event] = []
    body = {"model": "fake/stepwise", "input": "Hi", "stream": True} | fields
    with http.stream("POST", "/v1/responses", json=body) as reply:
        for event in events(reply):
            told.append(event)
            if len(told) == 1:
                say(http, event["response"]["id"], *words)
            if event["sequence_number"] == upto:
                break
    return told


def rest(http: httpx.Client, response_id: str, after: int) -> list[Event]:
    with http.stream(
        "GET", f"/v1/responses/{response_id}", params={"stream": "true", "starting_after": after}
    ) as reply:
        return list(events(reply))


def state(http: httpx.Client, response_id: str) -> str:
    told: str = http.get(f"/v1/programs/{program_of(response_id)}").json()["state"]
    return told


@pytest.fixture(scope="module")
def other(gateway: Gateway, inferlets: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnGateway]:
    """A second gateway, whose streams end 1 s behind their readers."""
    del inferlets
    with own_gateway(gateway, tmp_path_factory.mktemp("other"), RESPONSES_RESUME_S="1") as other:
        yield other


@pytest.mark.parametrize("background", [False, True])
def test_a_dropped_stream_goes_on_at_another_gateway(
    http: httpx.Client, other: OwnGateway, *, background: bool
) -> None:
    first = begin(http, ["a", "b", "c"], upto=6, background=background)
    response_id = first[0]["response"]["id"]
    with httpx.Client(base_url=other.url, timeout=30) as elsewhere:
        with elsewhere.stream("GET", f"/v1/responses/{response_id}?stream=true&starting_after=6") as reply:
            coming = events(reply)
            assert next(coming)["delta"] == " c"
            say(http, response_id, "d", "end")
            second = list(coming)
        whole = [*first, *rest(elsewhere, response_id, 6)]
    assert [event["sequence_number"] for event in whole] == list(range(len(whole)))
    assert whole[-1]["type"] == "response.completed"
    assert "".join(e["delta"] for e in whole if e["type"] == "response.output_text.delta") == "begun a b c d"
    assert second == whole[8:]
    assert rest(http, response_id, 0) == whole[1:]  # of the store, by now


def test_the_openai_client_goes_on_behind_an_event(api: openai.OpenAI, http: httpx.Client) -> None:
    with api.responses.create(model="fake/stepwise", input="Hi", background=True, stream=True) as coming:
        begun = next(iter(coming))
        assert begun.type == "response.created"
    say(http, begun.response.id, "on", "end")
    told = list(api.responses.retrieve(begun.response.id, stream=True, starting_after=begun.sequence_number))
    assert [event.sequence_number for event in told] == list(range(1, 1 + len(told)))
    assert told[-1].type == "response.completed"
    assert told[-1].response.output_text == "begun on"


def test_a_stream_whose_client_stays_away_ends(other: OwnGateway, http: httpx.Client) -> None:
    with httpx.Client(base_url=other.url, timeout=30) as elsewhere:
        left = begin(elsewhere, [], upto=4)[0]["response"]["id"]
        until(lambda: state(http, left) != "running")
        until(lambda: elsewhere.get(f"/v1/responses/{left}").json()["status"] == "cancelled")
        terminal = rest(elsewhere, left, 4)[-1]
        assert (terminal["type"], terminal["response"]["status"]) == ("response.incomplete", "cancelled")
        kept = begin(elsewhere, [], upto=4, background=True)[0]["response"]["id"]
        returned = begin(elsewhere, [], upto=4)[0]["response"]["id"]
        with http.stream("GET", f"/v1/responses/{returned}?stream=true&starting_after=2") as reply:
            coming = events(reply)
            assert next(coming)["sequence_number"] == 3
            time.sleep(1.5)  # longer than the first gateway waits for its client to come back
            say(http, returned, "end")
            assert list(coming)[-1]["type"] == "response.completed"
        assert state(http, kept) == "running"
        say(http, kept, "end")


def test_a_unary_client_that_leaves_ends_its_run(http: httpx.Client, gateway: Gateway, inferlets: None) -> None:
    del inferlets
    with gateway.client() as client, pytest.raises(httpx.ReadTimeout):
        client.post("/v1/responses", json={"model": "fake/stepwise", "input": "Hi"}, timeout=0.5)
    until(lambda: not any(p["name"].startswith("stepwise") for p in http.get("/v1/programs").json()["data"]))


def test_a_stream_survives_its_gateway(gateway: Gateway, http: httpx.Client, inferlets: None, tmp_path: Path) -> None:
    del inferlets
    for how in ("terminate", "kill"):
        with own_gateway(gateway, tmp_path) as dying, httpx.Client(base_url=dying.url, timeout=30) as client:
            told: list[Event] = []
            with client.stream("POST", "/v1/responses", json={
                "model": "fake/stepwise", "input": "Hi", "stream": True,
            }) as reply:  # fmt: skip
                coming = events(reply)
                while not told or told[-1]["type"] != "response.output_text.delta":
                    told.append(next(coming))
                getattr(dying.process, how)()
                with pytest.raises(httpx.RemoteProtocolError) if how == "kill" else nullcontext():
                    assert list(coming) == []  # no event says that the gateway stops: the client comes back
            dying.process.wait(20)
        response_id, after = told[0]["response"]["id"], told[-1]["sequence_number"]
        assert http.get(f"/v1/responses/{response_id}").json()["status"] == "in_progress"
        say(http, response_id, "later", "end")
        more = rest(http, response_id, after)
        assert more[0]["delta"] == " later"
        assert more[-1]["response"]["output"][0]["content"][0]["text"] == "begun later"
        assert http.get(f"/v1/responses/{response_id}").json()["status"] == "completed"


@pytest.mark.parametrize("query", ["starting_after=x", "starting_after=-2", "starting_after=99999999999999999999999"])
def test_a_wrong_number_is_refused(http: httpx.Client, query: str) -> None:
    reply = http.get(f"/v1/responses/resp_{'0' * 32}?stream=true&{query}")
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "starting_after")
