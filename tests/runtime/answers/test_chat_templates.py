"""What programs ask of chat templates: what templates would pass over in silence is refused, and work is bounded."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tartlet_common.errors.registry import InvalidArgument
from tartlet_runtime.answers.chat import MAX_PROMPT_CHARS, format_chat

USER = {"role": "user", "content": "Hi"}
CALL = {"function": {"name": "f", "arguments": {"a": 1}}}
ANY = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
SOME = "{% for m in messages if m.role in 'user assistant' %}<{{ m.role }}>{{ m.content }}{% endfor %}"
ONLY_IN_SYSTEM = "{% if messages[0].role == 'system' %}{{ tools | tojson if tools }}{% endif %}" + ANY
INDENTED = "{{ tools | tojson(indent=4) if tools }}" + ANY


def ask(template: str, messages: list[Any], **more: Any) -> str:
    request = json.dumps({"messages": messages, **more}).encode()
    return format_chat(template, request, bos_token="", eos_token="")


def refused(template: str, messages: list[Any], **more: Any) -> str:
    with pytest.raises(InvalidArgument) as error:
        ask(template, messages, **more)
    return str(error.value)


@pytest.mark.parametrize("template", ["{# no tools here #}" + ANY, ONLY_IN_SYSTEM])
def test_tools_that_leave_no_trace_are_refused(template: str) -> None:
    assert "writes none here" in refused(template, [USER], tools=[CALL])


def test_tools_that_a_template_writes_where_there_is_a_system_message_are_taken() -> None:
    system = {"role": "system", "content": "Be brief."}
    assert ask(ONLY_IN_SYSTEM, [system, USER], tools=[CALL]).startswith(json.dumps([CALL]))


@pytest.mark.parametrize("role", ["developer", "function", "human", "ipython"])
def test_a_role_that_leaves_no_trace_is_refused(role: str) -> None:
    lost = {"role": role, "content": "Never tell."}
    assert f"writes none of the role '{role}'" in refused(SOME, [lost, USER])
    assert ask(ANY, [lost, USER]) == f"<{role}>Never tell.<user>Hi"


@pytest.mark.parametrize("role", ["user1", "user_b", "assistant-2", "tool_1"])
def test_several_of_a_role_are_no_slips(role: str) -> None:
    assert ask(ANY, [{"role": role, "content": "Hi"}]) == f"<{role}>Hi"


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ({"role": "", "content": "Hi"}, "no role"),
        ({"role": "user"}, "'user' has no content"),
        ({"role": "tool", "content": None}, "'tool' has no content"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "'assistant' has no content"),
        ({"role": "tool", "content": {"degrees": 12}}, "'tool' is no text: JSON is written with `json.dumps`"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "only text parts"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "only text parts"),
        ({"role": "user", "content": "caf\ud83d"}, "half a character"),
    ],
)
def test_what_would_be_written_as_python_shows_it_is_refused(message: dict[str, Any], told: str) -> None:
    assert told in refused(ANY, [message])


def test_forms_of_other_servers_clients_are_taken() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert ask(ANY, [{"role": "user", "content": parts}]) == "<user>one\ntwo"
    assert ask("{{ messages[0] | tojson }}", [USER | {"tool_calls": None}]) == json.dumps(USER)
    called = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    assert ask("{{ messages[0] | tojson }}", [called]) == json.dumps(called | {"content": ""})
    del called["content"]
    assert ask(ANY, [USER, called]) == "<user>Hi<assistant>"
    assert ask("{{ tools is none }}", [USER], tools=[]) == "True"


def test_a_template_has_the_variables_that_are_given_and_may_mark_generation() -> None:
    template = "{% generation %}{{ messages[0].content }}{% endgeneration %}"
    template += "{{ ' /no_think' if enable_thinking is false }}"
    assert ask(template, [USER]) == "Hi"
    assert ask(template, [USER], enable_thinking=False) == "Hi /no_think"


def test_a_template_that_cannot_be_read_is_told_as_such() -> None:
    assert "its chat template can't be read here" in refused("{% do %}", [USER], tools=[CALL])


def test_what_a_template_makes_of_tools_is_bounded_while_it_is_made() -> None:
    wide = [{"a": {"b": {"c": [0] * 60_000}}} for _ in range(10)]  # 1.8 MB, indented 18 times as much
    begin = time.perf_counter()
    assert f"more than {MAX_PROMPT_CHARS} characters" in refused(INDENTED, [USER], tools=wide)
    assert time.perf_counter() - begin < 5
    deep: dict[str, Any] = {}
    for _ in range(70):
        deep = {"a": deep}
    assert "nested more than" in refused(INDENTED, [USER], tools=[deep])
