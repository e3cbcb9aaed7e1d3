"""Inferlets whose responses the tests store, and clients of the API."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

import tartlet
from tests.gateway.conftest import Gateway

STEPWISE = """
import json
from inferlet import receive, reply

async def main(args):
    request = await reply.request(args)
    reply.usage(9, 0)
    reply.delta("begun")
    while (said := await receive()) != "end":
        reply.delta(" " + said)
    reply.usage(9, 4)
"""
"""Says each message that it gets, so that a test decides how far a response is."""
ECHO = """
import json
from inferlet import reply

async def main(args):
    request = await reply.request(args)
    if request["messages"][-1]["content"] == "refuse":
        reply.refuse("no", param="input")
        return
    if request["messages"][-1]["content"] == "fail":
        raise ValueError("on purpose")
    reply.usage(9, 0)
    reply.delta(json.dumps([[m["role"], m["content"]] for m in request["messages"]]))
    reply.usage(9, 4, cached_tokens=2)
"""


@pytest.fixture(scope="package")
def inferlets(gateway: Gateway) -> None:
    with tartlet.Client(gateway.server.address) as client:
        for name, text in (("stepwise", STEPWISE), ("echo", ECHO)):
            client.put([tartlet.CatalogueEntry(name, tartlet.Source.python(text))])


@pytest.fixture(scope="package")
def api(gateway: Gateway, inferlets: None) -> Iterator[openai.OpenAI]:
    del inferlets
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as api:
        yield api
