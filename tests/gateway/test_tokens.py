"""`/tokenize` and `/detokenize`, and requests that are longer than a program's argument may be."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.gateway.test_chat import MESSAGES, chat


def test_text_becomes_tokens_and_text_again(http: httpx.Client) -> None:
    told = http.post("/tokenize", json={"prompt": "One, two", "return_token_strs": True}).json()
    assert told["count"] == len(told["tokens"]) == len(told["token_strs"])
    assert "".join(told["token_strs"]).endswith("One, two")
    assert told["max_model_len"] == http.get("/v1/models").json()["data"][0]["max_model_len"]
    text = http.post("/detokenize", json={"tokens": told["tokens"]}).json()["prompt"]
    assert text == "One, two"


def test_a_chat_has_as_many_tokens_as_its_prompt(http: httpx.Client) -> None:
    told = http.post("/tokenize", json={"messages": MESSAGES}).json()
    assert told["count"] == chat(http).json()["usage"]["prompt_tokens"]


def test_a_text_may_be_longer_than_an_argument(http: httpx.Client) -> None:
    text = "long " * 500_000
    told = http.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()
    assert told["count"] == len(text)  # the fake engine's tokens are bytes


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_longer_than_an_argument_reaches_the_inferlet(http: httpx.Client, *, stream: bool) -> None:
    reply = chat(http, messages=[{"role": "user", "content": "long " * 500_000}], stream=stream)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": MESSAGES}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user"}]}, "messages"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [1 << 30]}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
    ],
)
def test_a_wrong_field_is_named(http: httpx.Client, path: str, body: dict[str, Any], param: str) -> None:
    reply = http.post(path, json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
