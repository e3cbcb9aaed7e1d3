"""Inferlets of the catalogue behind the unchanged `openai` client: best of n, and rules without a model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

import tartlet
from tests.gateway.conftest import Gateway
from tests.gateway.test_chat import MESSAGES
from tests.gateway.test_keys import until

RULES = """
import json
from inferlet import reply

async def main(args):
    request = await reply.request(args)
    said = request["messages"][-1]
    if said["role"] == "tool":
        reply.delta(f"It is {json.loads(said['content'])['degrees']} degrees.")
    elif "weather" in said["content"]:
        reply.tool_call("weather", json.dumps({"city": "Oslo"}))
    else:
        reply.delta(f"You said: {said['content']}. Style: {request.get('style', 'plain')}")
    reply.usage(prompt_tokens=7, completion_tokens=3)
"""
TOOLS: list[Any] = [{"type": "function", "function": {"name": "weather"}}]


@pytest.fixture(scope="module")
def api(gateway: Gateway, repo: Path) -> Iterator[openai.OpenAI]:
    best = tartlet.Source.from_file(repo / "inferlets/std/best_of_n.py")
    with tartlet.Client(gateway.server.address) as client:
        rules = tartlet.CatalogueEntry("rules", tartlet.Source.python(RULES))
        nested = tartlet.CatalogueEntry("team/rules", tartlet.Source.python(RULES))
        bound = tartlet.CatalogueEntry("elsewhere", tartlet.Source.python(RULES), model="another")
        client.put([tartlet.CatalogueEntry("best-of-n", best), rules, nested, bound])
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as api:
        yield api


def test_models_list_the_inferlets_that_requests_can_name(api: openai.OpenAI) -> None:
    def listed() -> list[str]:
        return [model.id for model in api.models.list()]

    assert until(lambda: {"fake/best-of-n", "fake/rules"} <= set(listed()))  # a gateway's list is a second old
    names = listed()
    assert names[0] == "fake"
    assert not {"fake/team/rules", "fake/elsewhere", "another/elsewhere"} & set(names)
    assert api.models.retrieve("fake/rules").model_dump()["max_model_len"] > 0


@pytest.mark.parametrize("streamed", [False, True])
def test_best_of_n_answers_with_the_likeliest_of_its_answers(api: openai.OpenAI, *, streamed: bool) -> None:
    def answer(best_of: int) -> tuple[str, int]:
        fields: dict[str, Any] = {"model": "fake/best-of-n", "messages": MESSAGES, "seed": 5, "max_tokens": 6}
        fields["extra_body"] = {"best_of": best_of}
        if not streamed:
            whole = api.chat.completions.create(**fields)
            assert whole.usage is not None
            return whole.choices[0].message.content or "", whole.usage.completion_tokens
        *chunks, last = api.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True})
        return "".join(c.choices[0].delta.content or "" for c in chunks), last.usage.completion_tokens

    assert answer(8) == answer(8)
    texts = {answer(n)[0] for n in (1, 2, 4, 8)}
    assert len(texts) > 1  # more answers to choose from find a better one
    assert [answer(n)[1] for n in (1, 3)] == [6, 18]


def test_best_of_n_refuses_what_it_cannot_do(api: openai.OpenAI) -> None:
    for fields, param in (({"extra_body": {"best_of": 0}}, "best_of"), ({"n": 2}, "messages")):
        with pytest.raises(openai.BadRequestError) as refused:
            api.chat.completions.create(model="fake/best-of-n", messages=MESSAGES, **fields)
        assert refused.value.param == param


def test_rules_answer_and_call_tools_and_read_fields_of_their_own(api: openai.OpenAI) -> None:
    def answer(messages: list[Any], **fields: Any) -> Any:
        return api.chat.completions.create(model="fake/rules", messages=messages, tools=TOOLS, **fields)

    said = answer([{"role": "user", "content": "hello"}], extra_body={"style": "terse", "grammar": "x"})
    assert said.choices[0].message.content == "You said: hello. Style: terse"
    assert (said.usage.prompt_tokens, said.usage.completion_tokens) == (7, 3)
    asked: list[Any] = [{"role": "user", "content": "the weather?"}]
    called = answer(asked).choices[0]
    assert called.finish_reason == "tool_calls"
    (call,) = called.message.tool_calls
    assert call.function.arguments == '{"city": "Oslo"}'
    turn = [*asked, called.message, {"role": "tool", "tool_call_id": call.id, "content": '{"degrees": 7}'}]
    assert answer(turn).choices[0].message.content == "It is 7 degrees."


def test_a_named_inferlet_alone_gets_fields_that_the_api_does_not_know(http: httpx.Client) -> None:
    body = {"messages": MESSAGES, "max_tokens": 2, "style": "terse"}
    assert http.post("/v1/chat/completions", json=body).status_code == 200
