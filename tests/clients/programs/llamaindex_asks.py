"""Asks through LlamaIndex: a chat, a stream, a completion, a tool. Prints what came, as JSON."""

import json
import os

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

BASE = os.environ["OPENAI_BASE_URL"]


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


options = {"api_base": BASE, "api_key": "none", "context_window": 4096, "max_retries": 0}
chat = OpenAILike(model="fake/helper", is_chat_model=True, is_function_calling_model=True, **options)
hello = [ChatMessage(role="user", content="hello")]
told = {"chat": chat.chat(hello).message.content}
told["stream"] = [piece.delta for piece in chat.stream_chat(hello) if piece.delta]
tool = FunctionTool.from_defaults(fn=add)
called = chat.chat_with_tools([tool], user_msg='call add {"a": 19, "b": 23}')
(call,) = chat.get_tool_calls_from_response(called)
told["tool"] = [call.tool_name, call.tool_kwargs]
told["answered"] = chat.predict_and_call([tool], user_msg='call add {"a": 19, "b": 23}').response
plain = OpenAILike(model="fake", max_tokens=5, **options)
told["completed"] = len(plain.complete("Once").text) > 0
print(json.dumps(told))
