"""LoRA adapters over the OpenAI API: MODEL:ADAPTER names one."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import httpx
import openai
import pytest

import tartlet
from tests.gateway.conftest import Gateway
from tests.gateway.test_keys import until


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
    assert "fake:terse" in reply.json()["error"]["message"]


def is_shown(http: httpx.Client, model: str) -> bool:
    return http.get(f"/v1/models/{model}").status_code == 200


def test_the_docs_and_standard_inferlets_use_the_adapter(
    gateway: Gateway, api: openai.OpenAI, http: httpx.Client, repo: Path
) -> None:
    shout = (
        (repo / "docs/gateway.md")
        .read_text()
        .partition("```python\nfrom inferlet import reply\n")[2]
        .partition("```")[0]
    )
    sources = {
        "adapter-shout": tartlet.Source.python(f"from inferlet import reply\n{shout}"),
        "adapter-best": tartlet.Source.from_file(repo / "inferlets/std/best_of_n.py"),
    }
    with tartlet.Client(gateway.server.address) as client:
        client.put([tartlet.CatalogueEntry(name, source) for name, source in sources.items()])
        try:
            for name in sources:
                answers = [said(api, f"{model}/{name}") for model in ("fake", "fake:loud", "fake:terse", "fake:loud")]
                assert answers[1] == answers[3]
                assert len({tuple(texts) for texts in answers}) == 3
                assert until(partial(is_shown, http, f"fake:loud/{name}"))
            assert http.get("/v1/models/fake:none/adapter-best").status_code == 404
            assert http.get("/v1/models/fake:loud/none").status_code == 404
        finally:
            for name in sources:
                client.delete(name)
