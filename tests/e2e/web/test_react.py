"""The agent of `inferlets/std` with the demo model calls tools over HTTP, and answers with what they say."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import tartlet
from tartlet import Capabilities, LaunchSpec, Source
from tests.e2e.serving import client_of, serving
from tests.runtime.web.servers import Heard, Server, reply
from tests.runtime.web.servers import serving as serving_http

REPO = Path(__file__).parents[3]
AGENT = Source.from_file(REPO / "inferlets" / "std" / "react.py")


async def asked(client: tartlet.AsyncClient, url: str, question: str) -> tuple[list[dict[str, Any]], str]:
    """Asks the agent; returns its calls and its answer."""
    args = ["--tools", url, "--question", question]
    run = await client.run(spec=LaunchSpec(source=AGENT, args=args, capabilities=Capabilities(http=["127.0.0.1"])))
    calls = [json.loads(event.text) async for event in run if isinstance(event, tartlet.Message)]
    assert run.ended is not None
    assert run.ended.success, run.ended.error
    return calls, run.ended.result or ""


@pytest.fixture
def prices() -> dict[str, str]:
    return {"Karo": "27", "Zuber": "45"}


async def test_the_agent_uses_what_its_tools_answer(run_dir: Path, prices: dict[str, str]) -> None:
    async def tool(server: Server, heard: Heard, writer: asyncio.StreamWriter) -> None:
        given = json.loads(heard.body)
        writer.write(reply(prices[given["entity"]].encode()) if heard.target == "/lookup" else reply(status="404 None"))

    model = ("--model", str(REPO / "models" / "demo"))
    with serving(run_dir, *model, "--allow-http", "127.0.0.1", engine="torch") as server:
        async with client_of(server) as client, serving_http(tool) as web:
            calls, answer = await asked(client, web.url, "What is the price of Karo?")
            assert calls == [
                {"call": "lookup", "arguments": {"entity": "Karo", "attribute": "price"}, "observed": "27"}
            ]
            assert answer == "The price of Karo is 27."
            prices["Karo"] = "63"
            assert (await asked(client, web.url, "What is the price of Karo?"))[1] == "The price of Karo is 63."
            calls, answer = await asked(client, web.url, "Compare the price of Karo and Zuber.")
            assert [call["arguments"]["entity"] for call in calls] == ["Karo", "Zuber"]
            assert ("63" in answer, "45" in answer, "first is higher" in answer) == (True, True, True), answer
            calls, _ = await asked(client, web.url, "What time is it in Lima?")
            assert calls[0]["observed"].startswith("error: POST"), "a tool that fails is observed"
