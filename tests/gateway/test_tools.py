"""Tool calls and reasoning as clients of the OpenAI API read them, streamed and whole."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

import tartlet
from tests.e2e.serving import serving
from tests.gateway.conftest import Gateway, free_port
from tests.gateway.test_chat import chat, stream
from tests.run_directory import run_directory

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather in a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
CALLING = """
import json
from inferlet import reply

async def main(args):
    request = await reply.request(args)
    reply.reasoning("Which ")
    reply.reasoning("city?")
    if "tools" not in request:
        reply.delta("No tools.")
        return
    reply.tool_call("weather", json.dumps({"city": "Oslo"}))
    reply.tool_call("now")
"""


@pytest.fixture(scope="module")
def calling(gateway: Gateway, http: httpx.Client) -> str:
    """A model whose inferlet reasons, and calls two tools if it has any."""
    with tartlet.Client(gateway.server.address) as client:
        client.put([tartlet.CatalogueEntry("calling", tartlet.Source.python(CALLING))])
    return f"{http.get('/v1/models').json()['data'][0]['id']}/calling"


def test_a_reply_with_tool_calls_has_the_form_that_clients_check(http: httpx.Client, calling: str) -> None:
    reply = ChatCompletion.model_validate(chat(http, model=calling, tools=TOOLS).json(), strict=True)
    (choice,) = reply.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert choice.message.model_extra == {"reasoning_content": "Which city?", "reasoning": "Which city?"}
    assert choice.message.tool_calls is not None
    calls = [call.function for call in choice.message.tool_calls if call.type == "function"]
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [("weather", {"city": "Oslo"}), ("now", {})]
    assert len({call.id for call in choice.message.tool_calls}) == 2


def test_streamed_calls_name_themselves_once_and_join_to_the_whole(http: httpx.Client, calling: str) -> None:
    chunks = stream(http, model=calling, tools=TOOLS)
    state = ChatCompletionStreamState(input_tools=TOOLS)
    for chunk in chunks:
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk, strict=True))
    (choice,) = state.get_final_completion().choices
    assert [c.function.arguments for c in choice.message.tool_calls or ()] == ['{"city": "Oslo"}', "{}"]
    assert choice.finish_reason == "tool_calls"
    deltas = [x["delta"] for c in chunks for x in c["choices"]]
    assert "".join(d.get("reasoning_content", "") for d in deltas) == "Which city?"
    pieces = [call for d in deltas for call in d.get("tool_calls", ())]
    for index in (0, 1):
        first, *rest = [piece for piece in pieces if piece["index"] == index]
        assert first["id"].startswith("call_")
        assert first["type"] == "function"
        assert all(
            piece.keys() == {"index", "function"} and piece["function"].keys() == {"arguments"} for piece in rest
        )


def test_no_tool_is_offered_where_none_may_be_called(http: httpx.Client, calling: str) -> None:
    (choice,) = chat(http, model=calling, tools=TOOLS, tool_choice="none").json()["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", "No tools.")
    assert "tool_calls" not in choice["message"]


def test_calls_of_a_conversation_need_no_tools(http: httpx.Client) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    for said in ({"content": None}, {}, {"content": "Let me look."}):
        history = [{"role": "assistant", "tool_calls": [call], **said},
                   {"role": "tool", "tool_call_id": "call_1", "content": "noon"}]  # fmt: skip
        body = {"messages": [{"role": "user", "content": "What time is it?"}, *history], "max_tokens": 4}
        reply = http.post("/v1/chat/completions", json=body)
        assert reply.status_code == 200, reply.text
    items = [{"type": "function_call", "call_id": "call_1", "name": "now", "arguments": "{}"},
             {"type": "function_call_output", "call_id": "call_1", "output": "noon"}]  # fmt: skip
    reply = http.post("/v1/responses", json={"input": items, "max_output_tokens": 4})
    assert reply.status_code == 200, reply.text


def test_malformed_arguments_of_an_inferlet_are_its_error(gateway: Gateway, http: httpx.Client) -> None:
    source = "from inferlet import reply\ndef main(args):\n    reply.tool_call('now', '[1]')\n"
    with tartlet.Client(gateway.server.address) as client:
        client.put([tartlet.CatalogueEntry("bad-call", tartlet.Source.python(source))])
    model = http.get("/v1/models").json()["data"][0]["id"]
    reply = chat(http, model=f"{model}/bad-call", tools=TOOLS)
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "InternalError")


@pytest.fixture(scope="module")
def demo() -> Iterator[openai.OpenAI]:
    """The demo model, which was trained to call tools."""
    port = free_port()
    with (
        run_directory() as directory,
        serving(directory, engine="torch", http=f"127.0.0.1:{port}"),
        openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def test_curl_and_the_client_are_answered_as_the_readme_says(demo: openai.OpenAI, repo: Path) -> None:
    text = (repo / "README.md").read_text(encoding="utf-8")
    served = text.replace("http://127.0.0.1:8200/v1", str(demo.base_url).rstrip("/"))
    [curl] = re.findall(r"^\$ (curl .*?)^```", served, re.DOTALL | re.MULTILINE)
    [python] = re.findall(r"^```py\n(.*?)^```", served, re.DOTALL | re.MULTILINE)
    [answer] = re.findall(r"^Both answer `(.+?)`", text, re.MULTILINE)
    for command in (["bash", "-c", curl], [sys.executable, "-c", python]):
        ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        told = json.loads(ran.stdout)["choices"][0]["message"]["content"] if "curl" in command[-1] else ran.stdout
        assert told.strip() == answer


@pytest.mark.parametrize("streamed", [False, True])
def test_the_demo_model_calls_a_tool_and_reads_its_result(demo: openai.OpenAI, *, streamed: bool) -> None:
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Oslo?"}]

    def answer() -> Any:
        fields: dict[str, Any] = {"model": "demo", "messages": messages, "tools": TOOLS, "temperature": 0}
        if not streamed:
            return demo.chat.completions.create(**fields).choices[0]
        with demo.chat.completions.stream(**fields) as events:
            return events.get_final_completion().choices[0]

    choice = answer()
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Oslo"})
    messages.append(choice.message.model_dump(include={"role", "content", "tool_calls"}))
    messages.append({"role": "tool", "tool_call_id": call.id, "content": '{"degrees": 7, "sky": "rain"}'})
    choice = answer()
    assert choice.finish_reason == "stop"
    assert "7 degrees in Oslo" in choice.message.content


def test_the_demo_model_calls_the_tool_that_it_must(demo: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Oslo?"}]
    for name, arguments in (("weather", {"city": "Oslo"}), ("now", {})):
        choice: Any = {"type": "function", "function": {"name": name}}
        reply: Any = demo.chat.completions.create(
            model="demo", messages=messages, tools=TOOLS, tool_choice=choice, temperature=0
        )
        (call,) = reply.choices[0].message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == (name, arguments)
