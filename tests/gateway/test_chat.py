"""Chat and text completions as the clients of the OpenAI API rely on them, over real processes and the fake engine."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.completion import Completion

from tests.gateway.conftest import Gateway

MESSAGES: list[Any] = [{"role": "user", "content": "How far is the moon?"}]


def chat(http: httpx.Client, **fields: Any) -> httpx.Response:
    return http.post("/v1/chat/completions", json={"messages": MESSAGES, "max_tokens": 8} | fields)


def stream(http: httpx.Client, path: str = "/v1/chat/completions", **fields: Any) -> list[dict[str, Any]]:
    """Chunks of a streamed reply, whose form is checked on the way."""
    body = ({"prompt": "One, two,"} if path == "/v1/completions" else {"messages": MESSAGES}) | {"max_tokens": 8}
    reply = http.post(path, json=body | fields | {"stream": True})
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["cache-control"] == "no-store"
    *events, done, rest = reply.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert all(event.startswith("data: ") for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events]


def test_a_reply_has_the_form_that_clients_check(http: httpx.Client) -> None:
    reply = ChatCompletion.model_validate(chat(http).json(), strict=True)
    (choice,) = reply.choices
    assert (choice.index, choice.finish_reason, choice.message.role) == (0, "length", "assistant")
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 8
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 8
    assert reply.usage.prompt_tokens_details is not None


def test_the_tokens_of_a_prompt_that_was_asked_before_are_told_as_cached(http: httpx.Client) -> None:
    messages = [{"role": "user", "content": "A question that nobody has asked before. " * 8}]
    first, again = (
        ChatCompletion.model_validate(chat(http, messages=messages, temperature=0).json()) for _ in range(2)
    )
    assert again.choices[0].message == first.choices[0].message
    cached = []
    for reply in (first, again):
        assert reply.usage is not None
        assert reply.usage.prompt_tokens_details is not None
        cached.append(reply.usage.prompt_tokens_details.cached_tokens or 0)
    assert again.usage is not None
    assert cached[0] < 64
    assert again.usage.prompt_tokens - 64 <= cached[1] < again.usage.prompt_tokens


def test_max_completion_tokens_wins_over_max_tokens(http: httpx.Client) -> None:
    assert chat(http, max_tokens=8, max_completion_tokens=3).json()["usage"]["completion_tokens"] == 3


def test_choices_are_numbered_and_a_seed_repeats_them(http: httpx.Client) -> None:
    first, second = (chat(http, n=3, seed=5, temperature=1.0).json()["choices"] for _ in range(2))
    assert [choice["index"] for choice in first] == [0, 1, 2]
    assert first == second
    assert len({choice["message"]["content"] for choice in first}) > 1


def test_chunks_of_several_choices_name_their_own(http: httpx.Client) -> None:
    chunks = stream(http, n=2, seed=5)
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    assert len({(c["id"], c["created"], c["model"], c["object"]) for c in chunks}) == 1
    for index in (0, 1):
        own = [choice for c in chunks for choice in c["choices"] if choice["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert all("role" not in choice["delta"] for choice in own[1:])
        assert [choice["finish_reason"] for choice in own] == [None] * (len(own) - 1) + ["length"]
        assert own[-1]["delta"] == {}
    whole = chat(http, n=2, seed=5).json()["choices"]
    streamed = ["".join(c["delta"].get("content", "") for c in own) for own in _by_index(chunks, 2)]
    assert streamed == [choice["message"]["content"] for choice in whole]


def _by_index(chunks: list[dict[str, Any]], n: int) -> list[list[dict[str, Any]]]:
    return [[c for chunk in chunks for c in chunk["choices"] if c["index"] == index] for index in range(n)]


def test_usage_comes_in_a_chunk_of_its_own_where_it_is_asked_for(http: httpx.Client) -> None:
    assert all("usage" not in chunk for chunk in stream(http))
    *chunks, last = stream(http, stream_options={"include_usage": True})
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 8
    counts = stream(http, stream_options={"include_usage": True, "continuous_usage_stats": True})
    assert all(chunk["usage"] is not None for chunk in counts)
    told = [chunk["usage"]["completion_tokens"] for chunk in counts]
    assert told == sorted(told)
    assert told[-1] == 8
    sampled = [
        c["usage"]["completion_tokens"] for c in counts if c["choices"] and c["choices"][0]["delta"].get("content")
    ]
    assert sampled[0] >= 1
    assert len(set(sampled)) == len(sampled)  # each chunk counts its own tokens


def test_content_in_parts_is_content(http: httpx.Client) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": MESSAGES[0]["content"]}], "x": 1}]
    plain, listed = (chat(http, temperature=0, messages=messages).json() for messages in (MESSAGES, parts))
    assert plain["choices"] == listed["choices"]


@pytest.mark.parametrize("role", ["developer", "critic"])
def test_roles_that_no_template_knows_are_taken(http: httpx.Client, role: str) -> None:
    reply = chat(http, messages=[{"role": role, "content": "Be brief.", "name": "x"}, *MESSAGES])
    assert reply.status_code == 200, reply.text


def test_a_stop_string_ends_the_text_and_is_not_in_it(http: httpx.Client) -> None:
    text = chat(http, temperature=0, max_tokens=30).json()["choices"][0]["message"]["content"]
    stop = text[4:7]
    (choice,) = chat(http, temperature=0, max_tokens=30, stop=stop).json()["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == text[: text.index(stop)]


def test_text_completions_take_texts_and_tokens_and_echo_them(http: httpx.Client) -> None:
    def complete(prompt: Any, **fields: Any) -> Any:
        body = {"prompt": prompt, "max_tokens": 4, "temperature": 0} | fields
        return http.post("/v1/completions", json=body).json()

    several = complete(["One, two,", "Red, green,"], n=2, echo=True)
    Completion.model_validate(several, strict=True)
    assert [choice["index"] for choice in several["choices"]] == [0, 1, 2, 3]
    assert [choice["text"].partition(",")[0] for choice in several["choices"]] == ["One", "One", "Red", "Red"]
    tokens = complete([72, 105])
    assert tokens["choices"][0]["text"] == complete([[72, 105]])["choices"][0]["text"]
    assert tokens["usage"]["prompt_tokens"] == 2
    assert complete("One,", max_tokens=None)["usage"]["completion_tokens"] == 16
    assert [c["choices"][0]["text"] for c in stream(http, "/v1/completions", temperature=0)]


def test_the_models_are_listed_with_their_windows(http: httpx.Client) -> None:
    model, *_ = http.get("/v1/models").json()["data"]
    assert model["object"] == "model"
    assert model["max_model_len"] > 0
    assert http.get(f"/v1/models/{model['id']}").json() == model
    assert http.get("/v1/models/none").status_code == 404
    assert http.get("/health").status_code == 200


async def test_the_openai_client_runs_unchanged(gateway: Gateway) -> None:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        model = (await client.models.list()).data[0].id
        whole = await client.chat.completions.create(model=model, messages=MESSAGES, temperature=0, max_tokens=8)
        streamed = await client.chat.completions.create(
            model=model,
            messages=MESSAGES,
            temperature=0,
            max_tokens=8,
            stream=True,
        )
        pieces = [chunk.choices[0].delta.content async for chunk in streamed]
        assert "".join(piece or "" for piece in pieces) == whole.choices[0].message.content
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.chat.completions.create(model="none", messages=MESSAGES)
        assert unknown.value.code == "model_not_found"


async def test_any_inferlet_of_the_catalogue_answers(gateway: Gateway) -> None:
    import tartlet

    sources = {
        "shout": "from inferlet import send\ndef main(args):\n    send('LO')\n    send('UD')\n",
        "result": "def main(args):\n    return 'only a result'\n",
        "broken": "def main(args):\n    raise ValueError('on purpose')\n",
        "malformed": "from inferlet import send\ndef main(args):\n    send(b'\\x1e{\\xff}')\n",
        "open": "from inferlet import reply\ndef main(args):\n    reply.finish('length')\n    reply.delta('more')\n",
        "late": "from inferlet import send\ndef main(args):\n    send('so far')\n    raise ValueError('on purpose')\n",
    }
    async with tartlet.AsyncClient(gateway.server.address) as client:
        await client.put([tartlet.CatalogueEntry(name, tartlet.Source.python(text)) for name, text in sources.items()])
    with gateway.client() as http:
        model = http.get("/v1/models").json()["data"][0]["id"]
        texts = {}
        for name in ("shout", "result"):
            reply = chat(http, model=f"{model}/{name}").json()
            texts[name] = reply["choices"][0]["message"]["content"]
            assert reply["choices"][0]["finish_reason"] == "stop"
            assert reply["model"] == f"{model}/{name}"
        assert texts == {"shout": "LOUD", "result": "only a result"}
        broken = chat(http, model=f"{model}/broken", stream=True)
        assert (broken.status_code, broken.json()["error"]["code"]) == (500, "ProgramFailed")
        malformed = chat(http, model=f"{model}/malformed", stream=True)
        assert (malformed.status_code, malformed.json()["error"]["code"]) == (500, "InternalError")
        first, second = chat(http, model=f"{model}/open", n=2).json()["choices"]
        assert (first["finish_reason"], first["message"]["content"], second["finish_reason"]) == ("length", "", "stop")
        chunks = stream(http, model=f"{model}/open", n=2)
        assert [c["choices"][0]["finish_reason"] for c in chunks[-2:]] == ["length", "stop"]
        late = chat(http, model=f"{model}/late", stream=True)
        assert late.status_code == 200
        *_, error, done, _ = late.text.split("\n\n")
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "ProgramFailed"
        assert done == "data: [DONE]"
        unknown = chat(http, model=f"{model}/nothing")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
