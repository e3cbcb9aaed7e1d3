"""Tool calls and reasoning in generated text, in each family's form and however the text is cut into pieces."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inferlet.tool_formats import FORMATS, AnswerReader, Call, Part, Reasoning, Text, format_of, in_prompt

CALL = '{"name": "f", "arguments": {"a": "}<"}}'
WANTED = Call("f", '{"a": "}<"}')
LLAMA = '{"name": "f", "parameters": {"a": "}<"}}'


def read(text: str, size: int, family: str | None, **options: Any) -> list[Part]:
    """Read a text in pieces of `size` characters; neighbouring parts of one kind are joined."""
    reader = AnswerReader(FORMATS[family] if family else None, names=["f"], **options)
    parts = [part for at in range(0, len(text), size) for part in reader.feed(text[at : at + size])] + reader.end()
    joined: list[Part] = []
    for part in parts:
        if joined and isinstance(part, Text | Reasoning) and type(part) is type(joined[-1]):
            joined[-1] = type(part)(joined[-1].text + part.text)
        else:
            joined.append(part)
    return joined


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize(
    ("family", "text", "wanted"),
    [
        ("hermes", f"So:\n<tool_call>\n{CALL}\n</tool_call>", [Text("So:\n"), WANTED]),
        ("hermes", f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>", [WANTED, WANTED]),
        ("hermes", "a < b <tool_x>", [Text("a < b <tool_x>")]),
        ("hermes", '<tool_call>{"name": "f"}</tool_call>', [Call("f", "{}")]),
        ("hermes", '<tool_call>{"name": "f", "argu', [Text('<tool_call>{"name": "f", "argu')]),
        ("mistral", f"[TOOL_CALLS][{CALL}, {CALL}]", [WANTED, WANTED]),
        ("mistral", '[TOOL_CALLS]f[ARGS]{"a": "}<"}', [WANTED]),
        ("mistral", f"[{CALL}]", [WANTED]),
        ("llama", LLAMA, [WANTED]),
        ("llama", f"<|python_tag|>{LLAMA}; {LLAMA}", [WANTED, WANTED]),
        ("llama", '{"name": "other", "parameters": {}}', [Text('{"name": "other", "parameters": {}}')]),
        ("demo", CALL, [WANTED]),
        ("demo", '{"a": 1} is JSON', [Text('{"a": 1} is JSON')]),
        ("demo", f"The call is {CALL}", [Text(f"The call is {CALL}")]),
        (None, f"<think>\nHm < 3</think>\n\n{CALL}", [Reasoning("Hm < 3"), Text(CALL)]),
        ("hermes", f"<think>a</think><tool_call>{CALL}</tool_call>", [Reasoning("a"), WANTED]),
        ("demo", f"<think>a</think>\n{CALL}", [Reasoning("a"), WANTED]),
        (None, "<thin", [Text("<thin")]),
        (None, "", []),
    ],
)
def test_an_answer_is_taken_apart(family: str | None, text: str, wanted: list[Part], size: int) -> None:
    assert read(text, size, family) == wanted


def test_reasoning_may_have_begun_in_the_prompt_and_may_never_end() -> None:
    assert read("a</think>b", 2, None, reasoning=True) == [Reasoning("a"), Text("b")]
    assert read("abc", 2, None, reasoning=True) == [Reasoning("abc")]


def test_calls_beyond_the_bound_are_dropped() -> None:
    text = f"<tool_call>{CALL}</tool_call>" * 3
    assert read(text, 5, "hermes", most_calls=1) == [WANTED]


def test_the_prompt_that_a_template_makes_tells_the_form() -> None:
    assert format_of("[AVAILABLE_TOOLS] [...]").family == "mistral"
    assert format_of("<|start_header_id|>system").family == "llama"
    assert format_of("<|begin|><|system|>Tools: f(a)<|user|>?").family == "demo"
    assert format_of("<|begin|><|user|>?").family == "bare"


def test_arguments_of_earlier_calls_reach_a_template_as_objects() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": json.dumps({"a": 1})}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    (told,) = in_prompt(message, FORMATS["hermes"])["tool_calls"]
    assert told["function"]["arguments"] == {"a": 1}
    assert in_prompt(message, FORMATS["bare"]) == {
        "role": "assistant",
        "content": '{"name": "f", "arguments": {"a": 1}}',
    }
    assert in_prompt({"role": "user", "content": "x"}, None) == {"role": "user", "content": "x"}
