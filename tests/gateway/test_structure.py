"""Answers in a form that the request asks for, as the `openai` client and clients of vLLM ask for it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import httpx
import openai
import pytest
from pydantic import BaseModel, Field

from tests.gateway.conftest import Gateway
from tests.gateway.test_chat import MESSAGES, chat, stream
from tests.gateway.test_tools import TOOLS

NAMED = {"type": "function", "function": {"name": "now"}}
SMALL: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "sum.of-2",
            "parameters": {
                "type": "object",
                "properties": {"a": {"$ref": "#/$defs/digit"}, "of": {"enum": ["x", 'y"\n', 3]}},
                "required": ["a", "of"],
                "$defs": {"digit": {"type": "integer", "minimum": 0, "maximum": 9}},
            },
        },
    },
    TOOLS[1],
]
DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}


class Move(BaseModel):
    """A move on a board."""

    piece: Literal["king", "pawn"]
    row: Annotated[int, Field(ge=1, le=8)]
    takes: bool
    marks: Annotated[list[Literal["!", "?"]], Field(max_length=2)]


@pytest.fixture(scope="module")
def client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_the_client_parses_an_answer_into_its_class(client: openai.OpenAI) -> None:
    reply = client.chat.completions.parse(model="", messages=MESSAGES, response_format=Move, n=3, temperature=1.0)
    for choice in reply.choices:
        assert isinstance(choice.message.parsed, Move)
        assert choice.finish_reason == "stop"
    with client.chat.completions.stream(model="", messages=MESSAGES, response_format=Move, temperature=1.0) as events:
        parsed = [event.parsed for event in events if event.type == "content.done"]
    assert isinstance(parsed[0], Move)


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({"guided_choice": ["yes", 'no "é"\n']}, 'yes|no "é"\n'),
        ({"guided_regex": "[0-9]{3}-[a-f]"}, "[0-9]{3}-[a-f]"),
        ({"guided_grammar": 'root ::= "a" [0-3] "z"'}, "a[0-3]z"),
        ({"guided_grammar": 'start: "a" /[0-3]/ "z"'}, "a[0-3]z"),
        ({"guided_json": DIGIT}, "[0-9]"),
        ({"guided_json": json.dumps(DIGIT)}, "[0-9]"),
        ({"structured_outputs": {"regex": "[0-9]{3}"}}, "[0-9]{3}"),
        ({"structured_outputs": {"choice": ["left", "right"]}}, "left|right"),
        ({"structured_outputs": {"json": DIGIT}}, "[0-9]"),
        ({"structured_outputs": {"json_object": True}, "logit_bias": {"125": 100}}, "{}"),
        ({"response_format": {"type": "json_object"}, "logit_bias": {"125": 100}}, "{}"),
    ],
)
def test_fields_of_vllm_shape_chats_and_texts(http: httpx.Client, fields: dict[str, Any], form: str) -> None:
    asked = {"max_tokens": 32, "temperature": 1.0} | fields
    (choice,) = chat(http, **asked).json()["choices"]
    assert choice["finish_reason"] == "stop"
    assert re.fullmatch(form, choice["message"]["content"])
    chunks = stream(http, "/v1/completions", **asked, n=2, seed=3)
    texts = ["".join(c["text"] for chunk in chunks for c in chunk["choices"] if c["index"] == i) for i in (0, 1)]
    assert all(re.fullmatch(form, text) for text in texts), texts


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_forced_call_fits_its_tool(client: openai.OpenAI, choice: Any, *, streamed: bool) -> None:
    called = set()
    for seed in range(6):
        asked: Any = {"model": "", "messages": MESSAGES, "tools": SMALL, "tool_choice": choice, "seed": seed}
        if streamed:
            with client.chat.completions.stream(**asked) as events:
                reply: Any = events.get_final_completion()
        else:
            reply = client.chat.completions.create(**asked)
        assert reply.choices[0].finish_reason == "tool_calls"
        assert not reply.choices[0].message.content
        (call,) = reply.choices[0].message.tool_calls
        arguments = json.loads(call.function.arguments)
        called.add(call.function.name)
        if call.function.name == "now":
            assert arguments == {}
        else:
            assert arguments.keys() == {"a", "of"}
            assert arguments["a"] in range(10)
            assert arguments["of"] in ("x", 'y"\n', 3)
    assert called == ({"now"} if choice is NAMED else {"now", "sum.of-2"})


def test_a_strict_tool_that_may_be_called_is_taken_and_its_schema_holds_where_it_must_be_called(
    http: httpx.Client,
) -> None:
    """Of an `auto` call's arguments the schema is a wish: docs/clients.md, row 32."""
    strict = [{"type": "function", "function": {**tool["function"], "strict": True}} for tool in SMALL]
    unenforced = {"type": "object", "not": {"required": ["a"]}}
    wild = [{"type": "function", "function": {"name": "f", "strict": True, "parameters": unenforced}}]
    assert chat(http, tools=wild, max_tokens=4).status_code == 200
    error = chat(http, tools=wild, tool_choice="required").json()["error"]
    assert (error["param"], error["code"]) == ("tools", "invalid_function_parameters")
    (choice,) = chat(http, tools=strict, tool_choice="required", max_tokens=99, seed=1).json()["choices"]
    (call,) = choice["message"]["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    assert arguments == {} or (arguments["a"] in range(10) and arguments["of"] in ("x", 'y"\n', 3))


def test_a_forced_call_that_is_cut_off_is_no_fault(http: httpx.Client) -> None:
    (choice,) = chat(http, tools=SMALL, tool_choice="required", max_tokens=1).json()["choices"]
    assert choice["finish_reason"] == "length"
    assert "tool_calls" not in choice["message"]


def test_with_tools_a_schema_shapes_what_is_no_call(http: httpx.Client) -> None:
    kinds = set()
    for seed in range(8):
        asked = {"max_tokens": 99, "response_format": {"type": "json_schema"}, "seed": seed}
        asked["response_format"] = {"type": "json_schema", "json_schema": {"name": "digit", "schema": DIGIT}}
        (choice,) = chat(http, tools=SMALL, **asked).json()["choices"]
        kinds.add(choice["finish_reason"])
        if choice["finish_reason"] == "stop":
            assert re.fullmatch("[0-9]", choice["message"]["content"])
    assert "stop" in kinds
    assert kinds <= {"stop", "tool_calls"}


def test_a_schema_that_asks_too_much_is_refused_before_any_header(client: openai.OpenAI, http: httpx.Client) -> None:
    schema = {"type": "object", "not": {"required": ["a"]}}
    form: Any = {"type": "json_schema", "json_schema": {"name": "bad", "schema": schema, "strict": True}}
    for streamed in (False, True):
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model="", messages=MESSAGES, response_format=form, stream=streamed)
        assert (refused.value.param, refused.value.code) == (
            "response_format.json_schema.schema",
            "invalid_json_schema",
        )
    reply = chat(http, guided_regex="(")
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "guided_regex")
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    assert chat(http, tools=tools).status_code == 200  # the schema of a tool that may be called isn't compiled
    error = chat(http, tools=tools, tool_choice="required").json()["error"]
    assert (error["param"], error["code"]) == ("tools", "invalid_function_parameters")
