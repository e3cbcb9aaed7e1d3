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
