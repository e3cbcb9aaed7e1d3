"""Fields of a request that a client leaves out, or sets to null."""

from __future__ import annotations

from typing import Any, Final

import httpx
import pytest

SAID: Final[list[Any]] = [{"role": "user", "content": "Hi"}]
BODIES: Final[dict[str, dict[str, Any]]] = {
    "/v1/chat/completions": {"messages": SAID, "max_tokens": 2},
    "/v1/completions": {"prompt": "Hi", "max_tokens": 2},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 2},
    "/v1/messages": {"messages": SAID, "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": SAID},
}
_SHARED: Final = ("model", "stream", "ignore_eos", "n", "stop", "logit_bias", "stream_options", "min_tokens")
NULLS: Final = {
    "/v1/chat/completions": (*_SHARED, "continue_final_message", "tools", "tool_choice", "logprobs", "echo"),
    "/v1/completions": (*_SHARED, "echo", "suffix", "best_of", "logprobs"),
    "/v1/responses": ("model", "stream", "tools", "tool_choice", "text", "store", "include", "reasoning"),
    "/v1/messages": ("model", "stream", "system", "tools", "tool_choice", "stop_sequences", "metadata"),
    "/v1/messages/count_tokens": ("model", "system", "tools"),
}


@pytest.mark.parametrize("path", BODIES)
def test_null_is_as_good_as_leaving_a_field_out(http: httpx.Client, path: str) -> None:
    """Clients that send all fields of their types send null for those that nobody set."""
    reply = http.post(path, json=BODIES[path] | dict.fromkeys(NULLS[path]))
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"] == "application/json"


def test_options_of_a_stream_may_be_null(http: httpx.Client) -> None:
    options = {"include_usage": None, "continuous_usage_stats": None}
    body = BODIES["/v1/chat/completions"] | {"stream": True, "stream_options": options}
    reply = http.post("/v1/chat/completions", json=body)
    assert (reply.status_code, "usage" in reply.text) == (200, False), reply.text
