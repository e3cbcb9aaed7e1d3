"""The Responses API as the `openai` client and its strict types read it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

import tartlet
from tartlet_gateway.openai.errors import ApiError
from tartlet_gateway.responses.replies import Reply
from tartlet_gateway.responses.requests import ResponseRequest
from tests.gateway.conftest import Gateway

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TOOLS: list[Any] = [
    {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}, "strict": False}
]
REQUIRED = (
    "id", "object", "created_at", "completed_at", "status", "incomplete_details", "model", "previous_response_id",
    "instructions", "output", "error", "tools", "tool_choice", "truncation", "parallel_tool_calls", "text", "top_p",
    "presence_penalty", "frequency_penalty", "top_logprobs", "temperature", "reasoning", "usage", "max_output_tokens",
    "max_tool_calls", "store", "background", "service_tier", "metadata", "safety_identifier", "prompt_cache_key",
)  # fmt: skip
"""Fields that Open Responses asks of each response, null where unset."""
RULES = """
import json
from inferlet import reply

async def main(args):
    request = await reply.request(args)
    said = request["messages"][-1]
    reply.usage(9, 0)
    if said["role"] == "tool":
        reply.delta(f"It is {json.loads(said['content'])['degrees']} degrees.")
    elif request.get("tools"):
        reply.reasoning("Which ")
        reply.reasoning("city?")
        reply.delta("Let me ")
        reply.delta("look.")
        reply.tool_call("weather", json.dumps({"city": "Oslo"}))
        reply.tool_call("weather", json.dumps({"city": "Bergen"}))
    elif said["content"] == "fail":
        reply.delta("so far")
        raise ValueError("on purpose")
    else:
        reply.delta(json.dumps(request["messages"]))
    reply.usage(9, 4, cached_tokens=2, reasoning_tokens=1)
"""


@pytest.fixture(scope="module")
def api(gateway: Gateway) -> Iterator[openai.OpenAI]:
    with tartlet.Client(gateway.server.address) as client:
        client.put([tartlet.CatalogueEntry("answers", tartlet.Source.python(RULES))])
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as api:
        yield api


def stream(http: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    """Events of a streamed response, each validated strictly."""
    reply = http.post("/v1/responses", json={"input": "Hi", "stream": True} | fields)
    assert reply.status_code == 200, reply.text
    *told, rest = reply.text.split("\n\n")
    assert rest == ""
    events = []
    for text in told:
        name, data = text.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        EVENT.validate_python(event, strict=True)
        events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert len({event["response"]["id"] for event in events if "response" in event}) == 1
    return events


def test_a_response_validates_and_says_that_it_was_cut_off(http: httpx.Client) -> None:
    body = http.post("/v1/responses", json={"input": "Hi", "max_output_tokens": 6, "temperature": 0}).json()
    whole = Response.model_validate(body, strict=True)
    assert (whole.status, body["store"]) == ("incomplete", True)
    assert whole.incomplete_details is not None
    assert whole.incomplete_details.reason == "max_output_tokens"
    assert whole.usage is not None
    assert (whole.usage.output_tokens, whole.usage.total_tokens) == (6, whole.usage.input_tokens + 6)
    events = stream(http, max_output_tokens=6, temperature=0)
    assert events[-1]["type"] == "response.incomplete"
    deltas = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
    assert deltas == whole.output_text == Response.model_validate(events[-1]["response"], strict=True).output_text


def test_a_response_has_every_field_of_the_api(http: httpx.Client) -> None:
    body = http.post("/v1/responses", json={"input": "Hi", "max_output_tokens": 2}).json()
    assert body.keys() >= set(REQUIRED)
    assert {name for name in REQUIRED if body[name] is None} == {
        "completed_at", "error", "instructions", "max_tool_calls", "previous_response_id", "prompt_cache_key",
        "reasoning", "safety_identifier",
    }  # fmt: skip


@pytest.mark.parametrize("code", ["context_length_exceeded", "insufficient_quota", "rate_limit_exceeded"])
def test_failures_that_clients_tell_apart_keep_their_code(code: str) -> None:
    *_, last = Reply(ResponseRequest(input="Hi"), "run", "fake").fail(ApiError(429, "try again in 3s", code=code))
    assert (last["type"], last["response"]["error"]) == (
        "response.failed",
        {"code": code, "message": "try again in 3s"},
    )


def test_a_web_socket_is_told_to_post(gateway: Gateway, http: httpx.Client) -> None:
    with pytest.raises(InvalidStatus) as refused:
        connect(f"ws://127.0.0.1:{gateway.port}/v1/responses")
    error = json.loads(refused.value.response.body)["error"]
    assert (refused.value.response.status_code, error["code"]) == (400, "websocket_not_offered")
    assert "POST /v1/responses" in error["message"]
    assert http.post("/v1/responses", json={"input": "Hi", "max_output_tokens": 2}).status_code == 200


def test_items_open_and_close_in_pairs_and_join_to_the_output(http: httpx.Client, api: openai.OpenAI) -> None:
    assert api.models.list().data
    events = stream(http, model="fake/answers", tools=TOOLS)
    final = events[-1]["response"]
    assert (events[-1]["type"], final["status"]) == ("response.completed", "completed")
    assert [item["type"] for item in final["output"]] == ["reasoning", "message", "function_call", "function_call"]
    assert len({item["id"] for item in final["output"]}) == 4
    for index, item in enumerate(final["output"]):
        own = [e for e in events if e.get("output_index") == index]
        assert (own[0]["type"], own[-1]["type"]) == ("response.output_item.added", "response.output_item.done")
        assert own[-1]["item"] == item
        assert all(e["item_id"] == item["id"] for e in own[1:-1])
        joined = "".join(e["delta"] for e in own if e["type"].endswith(".delta"))
        assert joined == (item["arguments"] if "arguments" in item else item["content"][0]["text"])
    assert final["usage"]["input_tokens_details"]["cached_tokens"] == 2
    assert final["usage"]["output_tokens_details"]["reasoning_tokens"] == 1


@pytest.mark.parametrize("streamed", [False, True])
def test_the_openai_client_calls_tools_and_sends_their_results(api: openai.OpenAI, *, streamed: bool) -> None:
    def answer(given: Any, **fields: Any) -> Any:
        if not streamed:
            return api.responses.create(model="fake/answers", input=given, **fields)
        with api.responses.stream(model="fake/answers", input=given, **fields) as events:
            return events.get_final_response()

    first = answer("What is the weather?", tools=TOOLS)
    calls = [item for item in first.output if item.type == "function_call"]
    assert [json.loads(call.arguments)["city"] for call in calls] == ["Oslo", "Bergen"]
    turn: list[Any] = [{"role": "user", "content": "What is the weather?"}, *(i.to_dict() for i in first.output)]
    turn += [{"type": "function_call_output", "call_id": c.call_id, "output": '{"degrees": 7}'} for c in calls]
    assert answer(turn, tools=TOOLS).output_text == "It is 7 degrees."


def test_items_become_messages_however_bare_they_are(api: openai.OpenAI) -> None:
    given: list[Any] = [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "c"}]},
        {"type": "reasoning", "summary": []},
        {"role": "user", "content": "d"},
    ]
    told = api.responses.create(model="fake/answers", instructions="Be brief.", input=given).output_text
    assert [(m["role"], m["content"]) for m in json.loads(told)] == [
        ("system", "Be brief."), ("user", "ab"), ("assistant", "c"), ("user", "d"),
    ]  # fmt: skip


def test_a_failure_behind_the_first_event_ends_the_stream(http: httpx.Client, api: openai.OpenAI) -> None:
    assert api.api_key
    events = stream(http, model="fake/answers", input="fail")
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["code"] == "server_error"
    assert "on purpose" in events[-1]["response"]["error"]["message"]
    assert [e["item"]["status"] for e in events if e["type"] == "response.output_item.done"] == ["incomplete"]


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "previous_response_not_found"),
        ({"conversation": "c"}, "conversation", "unsupported_parameter"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", None),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type", None),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0]",
         "unsupported_parameter"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_data": "x"}]}]}, "input[0].content[0]",
         "unsupported_parameter"),
        ({"input": [{"role": "user", "content": [{"type": [], "text": "x"}]}]}, "input[0].content[0]",
         "unsupported_parameter"),
        ({"input": []}, "input", None),
        ({"max_output_tokens": 0}, "max_output_tokens", None),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format", None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("streamed", [False, True])
def test_what_is_not_offered_is_refused(
    http: httpx.Client, fields: dict[str, Any], param: str, code: str | None, *, streamed: bool
) -> None:
    reply = http.post("/v1/responses", json={"input": "Hi", "stream": streamed} | fields)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (400, param, code), error


def test_tools_that_no_model_here_can_call_are_left_out_beside_functions(http: httpx.Client) -> None:
    tools = [{"type": "web_search"}, {"type": "function", "name": "add", "parameters": {"type": "object"}}]
    fields = {"model": "fake", "input": "Hi", "max_output_tokens": 2}
    assert http.post("/v1/responses", json={**fields, "tools": tools}).status_code == 200
    named = {"tools": tools, "tool_choice": {"type": "web_search"}}
    assert http.post("/v1/responses", json={**fields, **named}).status_code == 400
