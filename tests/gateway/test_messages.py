"""Anthropic's Messages API, as the `anthropic` client reads it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import RawMessageStreamEvent
from pydantic import TypeAdapter

import tartlet
from tests.gateway.conftest import Gateway
from tests.gateway.responses.test_responses import RULES

EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
BEST_OF_N = Path(__file__).parents[2] / "inferlets" / "std" / "best_of_n.py"
TOOLS: list[Any] = [{"name": "weather", "description": "d", "input_schema": {"type": "object", "properties": {}}}]
ASKED: list[Any] = [{"role": "user", "content": "What is the weather?"}]


@pytest.fixture(scope="module")
def api(gateway: Gateway) -> Iterator[anthropic.Anthropic]:
    with tartlet.Client(gateway.server.address) as client:
        client.put([tartlet.CatalogueEntry("blocks", tartlet.Source.python(RULES))])
    with anthropic.Anthropic(base_url=gateway.url, api_key="none", max_retries=0) as api:
        yield api


@pytest.mark.parametrize("streamed", [False, True])
def test_the_client_calls_tools_and_sends_their_results(api: anthropic.Anthropic, *, streamed: bool) -> None:
    def answer(messages: list[Any], **fields: Any) -> Any:
        asked = {"model": "fake/blocks", "max_tokens": 50, "messages": messages, **fields}
        if not streamed:
            return api.messages.create(**asked)
        with api.messages.stream(**asked) as events:
            return events.get_final_message()

    first = answer(ASKED, tools=TOOLS, tool_choice={"type": "any"})
    assert [block.type for block in first.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert (first.content[0].thinking, first.content[1].text) == ("Which city?", "Let me look.")
    assert (first.stop_reason, first.usage.output_tokens, first.usage.cache_read_input_tokens) == ("tool_use", 4, 2)
    calls = [block for block in first.content if block.type == "tool_use"]
    assert [call.input for call in calls] == [{"city": "Oslo"}, {"city": "Bergen"}]
    results = [{"type": "tool_result", "tool_use_id": c.id, "content": '{"degrees": 7}'} for c in calls]
    turn = [*ASKED, {"role": "assistant", "content": first.to_dict()["content"]}, {"role": "user", "content": results}]
    told = answer(turn, tools=TOOLS, system=[{"type": "text", "text": "Be short."}])
    assert [block.text for block in told.content] == ["It is 7 degrees."]
    assert told.stop_reason == "end_turn"


def test_streamed_events_are_those_of_the_api_and_join_to_the_whole(http: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 6, "temperature": 0}
    whole = http.post("/v1/messages", json=body).json()
    reply = http.post("/v1/messages", json=body | {"stream": True})
    events = [json.loads(text.split("\ndata: ")[1]) for text in reply.text.split("\n\n") if text]
    for event in events:
        EVENT.validate_python(event)
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert (
        "".join(e["delta"]["text"] for e in events if e["type"] == "content_block_delta") == whole["content"][0]["text"]
    )
    assert events[-2]["delta"]["stop_reason"] == whole["stop_reason"] == "max_tokens"
    assert whole["usage"]["output_tokens"] == events[-2]["usage"]["output_tokens"] == 6
    assert events[0]["message"]["usage"]["input_tokens"] + events[0]["message"]["usage"]["cache_read_input_tokens"] > 0


@pytest.mark.parametrize("inferlet", ["fake", "fake/best"])
def test_the_stop_sequence_that_was_found_is_told(http: httpx.Client, gateway: Gateway, inferlet: str) -> None:
    with tartlet.Client(gateway.server.address) as client:
        client.put([tartlet.CatalogueEntry("best", tartlet.Source.from_file(BEST_OF_N))])
    body = {"model": inferlet, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 30, "temperature": 0}
    text = http.post("/v1/messages", json=body).json()["content"][0]["text"]
    stop = text[4:7]
    body |= {"stop_sequences": ["never said", stop]}
    whole = http.post("/v1/messages", json=body).json()
    reply = http.post("/v1/messages", json=body | {"stream": True})
    events = [json.loads(told.split("\ndata: ")[1]) for told in reply.text.split("\n\n") if told]
    assert whole["content"][0]["text"] == text[: text.index(stop)]
    for told in (whole, events[-2]["delta"]):
        assert (told["stop_reason"], told["stop_sequence"]) == ("stop_sequence", stop)
    assert (events[0]["message"]["stop_reason"], events[0]["message"]["stop_sequence"]) == (None, None)
    EVENT.validate_python(events[-2])


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0]"),
        ({"system": [{"type": "image"}]}, "system"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0]"),
        ({"tools": TOOLS, "tool_choice": {"type": "perhaps"}}, "tool_choice.type"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"temperature": 9}, "temperature"),
    ],
)
def test_what_is_wrong_is_named_in_the_api_s_form(http: httpx.Client, fields: dict[str, Any], path: str) -> None:
    reply = http.post("/v1/messages", json={"max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]} | fields)
    assert reply.status_code == 400
    told = reply.json()
    assert (told["type"], told["error"]["type"]) == ("error", "invalid_request_error")
    assert path in told["error"]["message"]


def test_unknown_models_and_programs_that_fail_are_told_in_the_api_s_form(api: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError):
        api.messages.create(model="nothing", max_tokens=4, messages=ASKED)
    failing: list[Any] = [{"role": "user", "content": "fail"}]
    with pytest.raises(anthropic.InternalServerError):
        api.messages.create(model="fake/blocks", max_tokens=4, messages=failing)
    with (
        pytest.raises(anthropic.APIStatusError) as broken,
        api.messages.stream(model="fake/blocks", max_tokens=4, messages=failing) as events,
    ):
        events.get_final_message()
    assert "on purpose" in str(broken.value)


@pytest.mark.parametrize("more", [{}, {"system": "Be short."}, {"tools": TOOLS}])
def test_tokens_are_counted_as_a_message_counts_them(api: anthropic.Anthropic, more: dict[str, Any]) -> None:
    counted = api.messages.count_tokens(model="fake", messages=ASKED, **more).input_tokens
    told = api.messages.create(model="fake", messages=ASKED, max_tokens=1, **more).usage
    assert counted == told.input_tokens + (told.cache_read_input_tokens or 0)


def test_a_count_of_nothing_is_refused_in_the_form_of_the_api(api: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        api.messages.count_tokens(model="fake", messages=[])
    told: Any = caught.value.body
    assert (told["type"], told["error"]["type"]) == ("error", "invalid_request_error")


def test_a_system_message_may_stand_behind_others(http: httpx.Client) -> None:
    said = [{"role": "user", "content": "Hi"}, {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}]
    reply = http.post("/v1/messages", json={"model": "fake", "max_tokens": 2, "messages": said})
    assert reply.status_code == 200, reply.text


def test_what_no_endpoint_answers_has_the_form_of_the_api_too(http: httpx.Client) -> None:
    other = http.post("/v1/messages", json={}, headers={"host": "evil.example"})
    assert (other.status_code, other.json()["type"], other.json()["error"]["type"]) == (
        403,
        "error",
        "permission_error",
    )
    unknown = http.get("/v1/messages/nothing")
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "not_found_error")
    for reply in (other, unknown):
        assert reply.headers.get_list("request-id") == [reply.headers["x-request-id"]]
