"""Requests that the gateway refuses: the status, the field and the code, as clients read them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import msgspec
import pytest

from tartlet_common.errors.registry import Unavailable
from tartlet_gateway.openai.bodies import MOST_DEEP
from tartlet_gateway.openai.errors import from_tartlet
from tartlet_gateway.programs.errors import TypedError

MESSAGES = [{"role": "user", "content": "Hi"}]
CHAT = "/v1/chat/completions"
BEGUN = {"role": "assistant", "content": "So"}
CALLED = BEGUN | {"tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}
TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages"),
        ({"max_tokens": "8"}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"seed": 1 << 63}, "seed"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"temperature": 2.5}, "temperature"),
        ({"stop": ""}, "stop"),
        ({"top_k": 1 << 40}, "top_k"),
        ({"stop_token_ids": [1 << 40]}, "stop_token_ids[0]"),
        ({"logprobs": 5}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logit_bias": {"word": -100}}, "logit_bias"),
        ({"logit_bias": {"999999": -100}}, "logit_bias"),
        ({"logit_bias": {str(token): -100 for token in range(260)}}, "logit_bias"),  # all of the fake engine's
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "no good"}}]}, "tools[0].function.name"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": {}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema.schema",
        ),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": [1]}, "guided_json"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", ""]}, "guided_choice"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_grammar": "start: " + "a" * (256 << 10)}, "guided_grammar"),
        ({"guided_regex": "a", "guided_json": {}}, "guided_regex"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice"),
        ({"tools": TOOLS, "guided_regex": "a"}, "guided_regex"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"continue_final_message": True}, "continue_final_message"),  # the last message is the user's
        ({"continue_final_message": True, "messages": [*MESSAGES, CALLED]}, "continue_final_message"),
        ({"continue_final_message": True, "messages": [*MESSAGES, BEGUN | {"content": []}]}, "continue_final_message"),
        (
            {"continue_final_message": True, "messages": [BEGUN], "add_generation_prompt": True},
            "continue_final_message",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_wrong_field_is_named(http: httpx.Client, fields: dict[str, Any], param: str, *, stream: bool) -> None:
    reply = http.post(CHAT, json={"messages": MESSAGES, "max_tokens": 4, "stream": stream} | fields)
    error = reply.json()["error"]
    assert (reply.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert set(error) == {"message", "type", "param", "code"}


def test_options_of_a_stream_are_for_streams(http: httpx.Client) -> None:
    reply = http.post(CHAT, json={"messages": MESSAGES, "stream_options": {"include_usage": True}})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "stream_options")


def test_what_is_off_and_what_is_unknown_is_no_reason_to_refuse(http: httpx.Client) -> None:
    off = {"logprobs": False, "presence_penalty": 0, "repetition_penalty": 1.0, "tools": [], "response_format": None}
    unknown = {"user": "somebody", "metadata": {"a": "b"}, "store": True, "from_the_future": 1}
    assert http.post(CHAT, json={"messages": MESSAGES, "max_tokens": 2} | off | unknown).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_does_not_fit_is_refused_before_any_header(http: httpx.Client, *, stream: bool) -> None:
    window = http.get("/v1/models").json()["data"][0]["max_model_len"]
    reply = http.post(CHAT, json={"messages": MESSAGES, "stream": stream, "max_tokens": window})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "max_tokens")
    assert f"maximum context length is {window}" in reply.json()["error"]["message"]  # clients parse this text


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"[1", "application/json", 400),
        (b"[]", "application/json", 400),
        (b"\xff", "application/json", 400),
        (b"", "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b"{}", "text/plain", 415),
        (b" " * (16 << 20) + b"{}", "application/json", 413),
    ],
)
def test_a_body_that_is_no_request(http: httpx.Client, content: bytes, kind: str, status: int) -> None:
    reply = http.post(CHAT, content=content, headers={"content-type": kind})
    assert reply.status_code == status
    assert reply.json()["error"]["message"]


def nested(depth: int) -> dict[str, Any]:
    """An object in an object, `depth` times."""
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"properties": value}
    return value


@pytest.mark.parametrize("depth", [70, 150, 700])
def test_what_is_nested_deep_is_the_clients_mistake(http: httpx.Client, depth: int) -> None:
    deep, text = nested(depth), "[" * depth + "]" * depth
    tool = {"type": "function", "function": {"name": "f", "parameters": deep}}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": text}}
    for fields in (
        {"x": deep},
        {"tools": [tool]},
        {"tools": [tool], "tool_choice": "required"},
        {"guided_json": deep},
        {"guided_json": json.dumps(deep)},
        {"messages": [*MESSAGES, {"role": "assistant", "tool_calls": [call]}]},
        {"chat_template_kwargs": deep},
    ):
        reply = http.post(CHAT, json={"messages": MESSAGES, "max_tokens": 2} | fields)
        assert reply.status_code in (200, 400), (list(fields), reply.text)
        if depth > MOST_DEEP and fields != {"guided_json": json.dumps(deep)} and "messages" not in fields:
            assert "deep" in reply.json()["error"]["message"]
    brackets = {"messages": [{"role": "user", "content": "[" * 500}], "max_tokens": 2, "x": [[]] * 300}
    assert http.post(CHAT, json=brackets).status_code in (200, 400)
    assert "deep" not in http.post(CHAT, json=brackets).text


def test_an_error_is_short_and_repeats_nothing_of_the_request(http: httpx.Client) -> None:
    secret = "do not repeat me"
    bodies = ({"messages": [secret] * 12_000}, {"messages": MESSAGES, "max_tokens": secret * 9_000},
              {"messages": MESSAGES, "tool_choice": {"type": secret}, "tools": TOOLS})  # fmt: skip
    for body in bodies:
        reply = http.post(CHAT, json=body)
        assert reply.status_code == 400
        assert len(reply.content) < 3000
        assert secret not in reply.text
        assert "/" not in reply.json()["error"]["message"]


@pytest.mark.parametrize("prompt", [None, "", [], [""], [[]], [True], [-1], [1 << 40], {"a": 1}, ["a", 3]])
def test_a_prompt_that_is_none(http: httpx.Client, prompt: object) -> None:
    reply = http.post("/v1/completions", json={"prompt": prompt})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "prompt")


def test_prompts_and_choices_are_bounded_together(http: httpx.Client) -> None:
    reply = http.post("/v1/completions", json={"prompt": ["a"] * 100, "n": 2})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "n")


def test_routes_and_methods_that_are_not_there(http: httpx.Client) -> None:
    assert http.get("/v1/nothing").status_code == 404
    assert http.get(CHAT).status_code == 405
    assert http.post("/v1/models", json={}).status_code == 405
    assert http.post("/v1/embeddings", json={"input": "a"}).status_code == 400
    assert all("error" in http.get(path).json() for path in ("/v1/nothing", CHAT))


def test_a_request_id_is_echoed_if_it_is_sane_and_made_otherwise(http: httpx.Client) -> None:
    echoed = http.get("/v1/models", headers={"x-request-id": "trace-1.a"})
    assert echoed.headers.get_list("x-request-id") == ["trace-1.a"]
    made = http.get("/nothing", headers={"x-request-id": "no good" * 40})
    (made_id,) = made.headers.get_list("x-request-id")
    assert len(made_id) == 32
    assert int(made.headers["openai-processing-ms"]) >= 0


def test_other_hosts_and_origins_are_refused(http: httpx.Client) -> None:
    """A page on the web that resolves its own name to this machine must not reach programs here."""
    assert http.get("/v1/models", headers={"host": "evil.example"}).status_code == 403
    assert http.get("/v1/models", headers={"origin": "https://evil.example"}).status_code == 403
    assert http.post(CHAT, json={}, headers={"origin": "null"}).status_code == 403
    assert http.get("/v1/models", headers={"host": "localhost:80@evil.example"}).status_code == 403
    twice = [("host", "localhost"), ("origin", "https://evil.example"), ("origin", "http://localhost")]
    assert http.get("/v1/models", headers=twice).status_code == 403
    page = http.get("/v1/models", headers={"origin": "http://localhost:3000"})
    assert page.headers["access-control-allow-origin"] == "http://localhost:3000"
    preflight = http.options(CHAT, headers={"origin": "http://localhost:3000", "access-control-request-method": "POST"})
    assert (preflight.status_code, preflight.content) == (204, b"")
    assert "POST" in preflight.headers["access-control-allow-methods"]


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses"])
@pytest.mark.parametrize("value", [b'"\xff"', b"1e999"])
def test_an_unknown_field_that_cannot_be_read_is_the_clients_mistake(
    http: httpx.Client, path: str, value: bytes
) -> None:
    body = b'{"messages": [{"role": "user", "content": "Hi"}], "prompt": "Hi", "input": "Hi", "x": %s}' % value
    reply = http.post(path, content=body, headers={"content-type": "application/json"})
    assert (reply.status_code, reply.json()["error"]["type"]) == (400, "invalid_request_error"), reply.text


def test_what_cannot_be_reached_is_told_without_its_address(caplog: pytest.LogCaptureFixture) -> None:
    error = Unavailable(what="the server at unix:/run/of/runtime.sock", detail="10.0.0.7 refuses")
    for told in (from_tartlet(error), TypedError(error)):
        text = msgspec.json.encode(told.body).decode()
        assert told.status == 503
        assert told.code == "unavailable"
        assert "runtime.sock" not in text
        assert "10.0.0.7" not in text
    assert "/run/of/runtime.sock" in caplog.text
