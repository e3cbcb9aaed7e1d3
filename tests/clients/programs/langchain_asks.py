"""Asks through LangChain: a chat, a stream, a tool, an object of a schema. Prints what came, as JSON."""

import json
import os
from typing import Literal

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

BASE = os.environ["OPENAI_BASE_URL"]


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Mood(BaseModel):
    """How somebody feels."""

    mood: Literal["good", "bad"]
    sure: bool


chat = ChatOpenAI(model="fake/helper", base_url=BASE, api_key="none", max_retries=0)
answer = chat.invoke("hello")
told = {"chat": answer.content, "usage": answer.usage_metadata["total_tokens"]}
told["stream"] = [chunk.content for chunk in chat.stream("hello") if chunk.content]
asked = [HumanMessage('call add {"a": 19, "b": 23}')]
able = chat.bind_tools([add])
called = able.invoke(asked)
(call,) = called.tool_calls
told["tool"] = [call["name"], call["args"]]
answered = able.invoke([*asked, called, ToolMessage(str(add.invoke(call["args"])), tool_call_id=call["id"])])
told["answered"] = answered.content
plain = ChatOpenAI(model="fake", base_url=BASE, api_key="none", max_retries=0, max_tokens=200)
told["mood"] = plain.with_structured_output(Mood, method="json_schema").invoke("How are you?").mood
print(json.dumps(told))
