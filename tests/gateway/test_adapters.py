"""LoRA adapters over the OpenAI API: MODEL:ADAPTER names one."""

from __future__ import annotations

import httpx
import openai
import pytest

from tests.gateway.conftest import Gateway


@pytest.fixture
def api(gateway: Gateway) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)


def said(api: openai.OpenAI, model: str, **more: object) -> list[str]:
    messages = [{"role": "user", "content": "Tell me about adapters."}]
    reply = api.chat.completions.create(model=model, messages=messages, max_tokens=12, temperature=0, **more)  # type: ignore[call-overload]
    assert reply.model == model
    return [choice.message.content for choice in reply.choices]


def test_models_are_listed_and_shown_with_each_of_their_adapters(api: openai.OpenAI, http: httpx.Client) -> None:
    names = [model.id for model in api.models.list()]
    assert names[:3] == ["fake", "fake:loud", "fake:terse"]
    assert api.models.retrieve("fake:loud").id == "fake:loud"
    assert http.get("/v1/models/fake:none").status_code == 404


def test_a_model_answers_otherwise_under_each_adapter_and_all_choices_have_it(api: openai.OpenAI) -> None:
    answers = {name: said(api, name, n=2) for name in ("fake", "fake:loud", "fake:terse")}
    assert len({tuple(texts) for texts in answers.values()}) == 3
    assert all(first == second for first, second in answers.values())
    text = [api.completions.create(model=name, prompt="Hi", max_tokens=8, temperature=0).choices[0].text
            for name in ("fake", "fake:loud")]  # fmt: skip
    assert text[0] != text[1]
    responses = {name: api.responses.create(model=name, input="Tell me about adapters.", max_output_tokens=12,
                                            temperature=0).output_text for name in answers}  # fmt: skip
    assert responses == {name: texts[0] for name, texts in answers.items()}


@pytest.mark.parametrize("name", ["fake:none", "fake:", ":loud", "other:loud"])
def test_an_adapter_that_there_is_none_of_is_an_unknown_model(http: httpx.Client, name: str) -> None:
    body = {"model": name, "messages": [{"role": "user", "content": "hi"}]}
    reply = http.post("/v1/chat/completions", json=body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")
