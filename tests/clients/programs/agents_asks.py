"""Asks through the Agents SDK, over responses and over chats: an agent with a tool, whole and streamed. Prints JSON."""

import asyncio
import json
import os

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

set_tracing_disabled(True)


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def main() -> None:
    client = AsyncOpenAI(base_url=os.environ["OPENAI_BASE_URL"], api_key="none", max_retries=0)
    told = {}
    for name, kind in (("responses", OpenAIResponsesModel), ("chats", OpenAIChatCompletionsModel)):
        agent = Agent(name="Adder", model=kind(model="fake/helper", openai_client=client), tools=[add])
        told[name] = (await Runner.run(agent, 'call add {"a": 19, "b": 23}')).final_output
        streamed = Runner.run_streamed(agent, "hello")
        async for _ in streamed.stream_events():
            pass
        told[f"{name}_streamed"] = streamed.final_output
    print(json.dumps(told))


asyncio.run(main())
