"""Fields of a request that a client leaves out, or sets to null."""

from __future__ import annotations

import json
from typing import Any, Final

import httpx
import pytest

SAID: Final[list[Any]] = [{"role": "user", "content": "Hi"}]
BODIES: Final[dict[str, dict[str, Any]]] = {
    "/v1/chat/completions": {"messages": SAID, "max_tokens": 2},
    "/v1/completions": {"prompt": "Hi", "max_tokens": 2},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 2},
    "/v1/messages": {"messages": SAID, "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": SAID},
}
_SHARED: Final = ("model", "stream", "ignore_eos", "n", "stop", "logit_bias", "stream_options", "min_tokens")
NULLS: Final = {
    "/v1/chat/completions": (*_SHARED, "continue_final_message", "tools", "tool_choice", "logprobs", "echo"),
    "/v1/completions": (*_SHARED, "echo", "suffix", "best_of", "logprobs"),
    "/v1/responses": ("model", "stream", "tools", "tool_choice", "text", "store", "include", "reasoning"),
    "/v1/messages": ("model", "stream", "system", "tools", "tool_choice", "stop_sequences", "metadata"),
    "/v1/messages/count_tokens": ("model", "system", "tools"),
}


@pytest.mark.parametrize("path", BODIES)
def test_null_is_as_good_as_leaving_a_field_out(http: httpx.Client, path: str) -> None:
    """Clients that send all fields of their types send null for those that nobody set."""
    reply = http.post(path, json=BODIES[path] | dict.fromkeys(NULLS[path]))
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"] == "application/json"


def test_options_of_a_stream_may_be_null(http: httpx.Client) -> None:
    options = {"include_usage": None, "continuous_usage_stats": None}
    body = BODIES["/v1/chat/completions"] | {"stream": True, "stream_options": options}
    reply = http.post("/v1/chat/completions", json=body)
    assert (reply.status_code, "usage" in reply.text) == (200, False), reply.text


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        *(
            ("/v1/chat/completions", {name: value}, name)
            for name, value in {
                "allowed_token_ids": [1],
                "audio": {"voice": "a", "format": "wav"},
                "bad_words": ["no"],
                "chat_template": "{{ messages }}",
                "documents": [{"text": "Tarts are round."}],
                "echo": True,
                "include_stop_str_in_output": True,
                "prompt_logprobs": 0,
                "truncate_prompt_tokens": 2,
                "use_beam_search": True,
                "web_search_options": {},
            }.items()
        ),
        ("/v1/completions", {"bad_words": ["no"]}, "bad_words"),
        ("/v1/responses", {"top_logprobs": 2}, "top_logprobs"),
        ("/v1/responses", {"include": ["message.output_text.logprobs"]}, "include"),
        ("/v1/messages", {"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
        ("/v1/messages", {"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
    ],
)
def test_a_field_that_would_change_the_answer_is_refused_by_name(
    http: httpx.Client, path: str, fields: dict[str, Any], param: str
) -> None:
    reply = http.post(path, json=BODIES[path] | fields)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error.get("param", param) == param
    assert param in error["message"]


def test_a_field_that_asks_for_nothing_is_taken(http: httpx.Client) -> None:
    off = {"add_generation_prompt": True, "bad_words": [], "echo": False, "use_beam_search": False}
    path = "/v1/chat/completions"
    assert http.post(path, json=BODIES[path] | off).status_code == 200
    more = {"top_logprobs": 0, "include": ["reasoning.encrypted_content"]}
    assert http.post("/v1/responses", json=BODIES["/v1/responses"] | more).status_code == 200


def test_a_message_follows_the_schema_that_its_request_asks_for(http: httpx.Client) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    config = {"format": {"type": "json_schema", "schema": schema | {"additionalProperties": False}}}
    body = BODIES["/v1/messages"] | {"max_tokens": 200, "output_config": config}
    reply = http.post("/v1/messages", json=body)
    assert reply.status_code == 200, reply.text
    assert isinstance(json.loads(reply.json()["content"][0]["text"])["ok"], bool)
