"""An answer that goes on with what the last message began, or that no mark of the template begins."""

from __future__ import annotations

from typing import Any, Final

import httpx
import pytest

ASKED: Final[list[Any]] = [{"role": "user", "content": "Hi"}]
BEGUN: Final = "So <|end|> far, "
OPENING: Final = "<|user|>Hi<|end|>"
"""What the fake engine's template makes of `ASKED`."""
GREEDY: Final = {"max_tokens": 12, "temperature": 0}


def text_behind(http: httpx.Client, prompt: str) -> str:
    """The engine's text behind a prompt that no template has written."""
    tokens = http.post("/tokenize", json={"prompt": prompt, "add_special_tokens": False}).json()["tokens"]
    text: str = http.post("/v1/completions", json={"prompt": tokens, **GREEDY}).json()["choices"][0]["text"]
    return text


def text_of_chat(http: httpx.Client, messages: list[Any], **fields: Any) -> str:
    reply = http.post("/v1/chat/completions", json={"messages": messages, **GREEDY, **fields})
    assert reply.status_code == 200, reply.text
    text: str = reply.json()["choices"][0]["message"]["content"]
    return text


@pytest.mark.parametrize("content", [BEGUN, [{"type": "text", "text": BEGUN}]])
def test_an_answer_goes_on_with_the_last_message(http: httpx.Client, content: Any) -> None:
    messages = [*ASKED, {"role": "assistant", "content": content}]
    wanted = text_behind(http, f"{OPENING}<|assistant|>{BEGUN}")
    assert text_of_chat(http, messages, continue_final_message=True) == wanted
    assert text_of_chat(http, messages, continue_final_message=True, add_generation_prompt=False) == wanted
    assert text_of_chat(http, messages) == text_behind(http, f"{OPENING}<|assistant|>{BEGUN}<|end|><|assistant|>")


def test_an_answer_begins_without_the_templates_mark(http: httpx.Client) -> None:
    assert text_of_chat(http, ASKED, add_generation_prompt=False) == text_behind(http, OPENING)


def test_a_message_that_ends_with_the_assistants_text_is_gone_on_with(http: httpx.Client) -> None:
    messages = [*ASKED, {"role": "assistant", "content": [{"type": "text", "text": BEGUN}]}]
    reply = http.post("/v1/messages", json={"messages": messages, **GREEDY})
    assert reply.status_code == 200, reply.text
    assert reply.json()["content"][0]["text"] == text_behind(http, f"{OPENING}<|assistant|>{BEGUN}")


@pytest.mark.parametrize("content", [BEGUN, [{"type": "text", "text": BEGUN}]])
def test_the_tokens_of_a_prompt_end_within_the_message_that_is_gone_on_with(http: httpx.Client, content: Any) -> None:
    messages = [*ASKED, {"role": "assistant", "content": content}]
    asked = {"messages": messages, "continue_final_message": True}
    told = http.post("/tokenize", json=asked).json()
    text = {"prompt": f"{OPENING}<|assistant|>{BEGUN}", "add_special_tokens": False}
    assert told["tokens"] == http.post("/tokenize", json=text).json()["tokens"]
    assert told["count"] == http.post("/v1/chat/completions", json=asked | GREEDY).json()["usage"]["prompt_tokens"]


def test_counting_a_message_that_is_gone_on_with_counts_its_prompt(http: httpx.Client) -> None:
    body = {"messages": [*ASKED, {"role": "assistant", "content": BEGUN}]}
    counted = http.post("/v1/messages/count_tokens", json=body).json()["input_tokens"]
    assert counted == http.post("/v1/messages", json=body | GREEDY).json()["usage"]["input_tokens"]


@pytest.mark.parametrize(
    "body",
    [
        {"messages": ASKED},
        {"prompt": "Hi"},
        {"messages": [{"role": "assistant", "content": BEGUN}], "add_generation_prompt": True},
    ],
)
def test_tokens_of_what_no_answer_goes_on_with_are_refused(http: httpx.Client, body: dict[str, Any]) -> None:
    reply = http.post("/tokenize", json=body | {"continue_final_message": True})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "continue_final_message")
