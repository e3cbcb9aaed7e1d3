"""Log-probabilities, bias and penalties of chat and text completions, streamed and whole, as clients check them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.completion import Completion

from tests.gateway.conftest import Gateway
from tests.gateway.test_chat import MESSAGES, chat, stream

TEXT = "/v1/completions"


def whole_text(http: httpx.Client, **fields: Any) -> Any:
    return http.post(TEXT, json={"prompt": "One, two,", "max_tokens": 8} | fields).json()["choices"][0]


@pytest.mark.parametrize("top", [None, 0, 1, 20])
def test_no_zero_and_some_log_probabilities_of_a_chat(http: httpx.Client, top: int | None) -> None:
    fields: dict[str, Any] = {"logprobs": True, "temperature": 0} | ({} if top is None else {"top_logprobs": top})
    reply = chat(http, **fields).json()
    ChatCompletion.model_validate(reply, strict=True)
    (choice,) = reply["choices"]
    told = choice["logprobs"]["content"]
    assert len(told) == reply["usage"]["completion_tokens"] == 8
    for entry in told:
        assert entry["logprob"] <= 0
        assert bytes(entry["bytes"]).decode() == entry["token"]
        assert len(entry["top_logprobs"]) == (top or 0)
        if top:
            assert entry["top_logprobs"][0]["token"] == entry["token"]  # greedy takes the best
    chunks = stream(http, **fields)
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    streamed = [e for c in chunks for x in c["choices"] if x["logprobs"] for e in x["logprobs"]["content"]]
    assert streamed == told
    assert chat(http, temperature=0).json()["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("stop", [None, 4])
def test_the_tokens_of_log_probabilities_join_to_the_text(http: httpx.Client, stop: int | None) -> None:
    text = chat(http, temperature=0, max_tokens=24).json()["choices"][0]["message"]["content"]
    fields = {} if stop is None else {"stop": text[stop : stop + 3]}
    (choice,) = chat(http, temperature=0, max_tokens=24, logprobs=True, **fields).json()["choices"]
    assert "".join(entry["token"] for entry in choice["logprobs"]["content"]) == choice["message"]["content"]
    one = whole_text(http, temperature=0, logprobs=2, max_tokens=24)
    assert "".join(one["logprobs"]["tokens"]) == one["text"]


def test_log_probabilities_of_a_text_completion(http: httpx.Client) -> None:
    reply = http.post(TEXT, json={"prompt": ["One,", "Two,"], "max_tokens": 6, "logprobs": 3, "n": 2}).json()
    Completion.model_validate(reply, strict=True)
    for choice in reply["choices"]:
        told = choice["logprobs"]
        assert len(told["tokens"]) == len(told["token_logprobs"]) == len(told["top_logprobs"]) == 6
        assert all(choice["text"][at:].startswith(t) for at, t in zip(told["text_offset"], told["tokens"], strict=True))
        assert all(3 <= len(best) <= 4 for best in told["top_logprobs"])
        own = [best[token] for best, token in zip(told["top_logprobs"], told["tokens"], strict=True)]
        assert own == told["token_logprobs"]
    chunks = [c["choices"][0]["logprobs"] for c in stream(http, TEXT, temperature=0, logprobs=0)]
    whole = whole_text(http, temperature=0, logprobs=0)["logprobs"]
    for name, values in whole.items():
        assert [v for c in chunks if c for v in c[name]] == values
    refused = http.post(TEXT, json={"prompt": "One,", "logprobs": 1, "echo": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "logprobs")
    refused = http.post(TEXT, json={"prompt": "One,", "logprobs": 21})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "logprobs")


@pytest.mark.parametrize("streamed", [False, True])
def test_a_bias_of_minus_100_bans_a_token_and_100_forces_it(http: httpx.Client, *, streamed: bool) -> None:
    def text(**fields: Any) -> str:
        if streamed:
            pieces = [x["delta"].get("content", "") for c in stream(http, **fields) for x in c["choices"]]
            return "".join(pieces)
        return str(chat(http, **fields).json()["choices"][0]["message"]["content"])

    usual = text(temperature=0, max_tokens=30)
    banned = {str(ord(char)): -100 for char in set(usual)}  # the fake engine's tokens are bytes
    assert not set(text(temperature=0, max_tokens=30, logit_bias=banned)) & set(usual)
    assert text(max_tokens=5, logit_bias={str(ord("z")): 100}) == "zzzzz"


def test_a_stop_token_ends_the_text_and_is_not_in_it(http: httpx.Client) -> None:
    text = chat(http, temperature=0, max_tokens=30).json()["choices"][0]["message"]["content"]
    stop = text[5]  # the fake engine's tokens are bytes
    fields: dict[str, Any] = {"temperature": 0, "max_tokens": 30, "stop_token_ids": [ord(stop)]}
    (choice,) = chat(http, **fields).json()["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", text[: text.index(stop)])
    chunks = stream(http, **fields)
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == choice["message"]["content"]


def test_penalties_spread_the_tokens_of_a_reply(http: httpx.Client) -> None:
    few = {str(ord(c)): 30 for c in "abcdefgh"}

    def most_frequent(**fields: Any) -> int:
        text = chat(http, temperature=0, max_tokens=32, logit_bias=few, **fields).json()["choices"][0]["message"]
        return max(Counter(text["content"]).values())

    assert most_frequent() > 6
    assert most_frequent(frequency_penalty=2.0) <= 6
    for name, value in (("presence_penalty", 2.0), ("repetition_penalty", 2.0), ("presence_penalty", -2.0)):
        assert chat(http, temperature=0, max_tokens=32, **{name: value}).json() != chat(http, max_tokens=32).json()


async def test_the_openai_client_gets_log_probabilities_and_gives_bias_and_penalties(gateway: Gateway) -> None:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        reply = await client.chat.completions.create(
            model="fake",
            messages=MESSAGES,
            max_tokens=6,
            logprobs=True,
            top_logprobs=2,
            logit_bias={"101": -100},
            frequency_penalty=0.5,
            presence_penalty=0.5,
            extra_body={"repetition_penalty": 1.1},
        )
        told = reply.choices[0].logprobs
        assert told is not None
        assert told.content is not None
        assert [len(entry.top_logprobs) for entry in told.content] == [2] * 6
        assert "e" not in (reply.choices[0].message.content or "")
