"""Bodies of `POST /v1/responses`, made the body of a chat completion, which is checked as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from tartlet_gateway.openai.bodies import decoded
from tartlet_gateway.openai.errors import ApiError, not_offered
from tartlet_gateway.openai.requests import ChatRequest, read_chat

_TEXT_PARTS: Final = frozenset({"input_text", "output_text", "text", "refusal", "summary_text"})


class ResponseRequest(Struct, kw_only=True, omit_defaults=True):
    """The body. Fields that aren't here are ignored, as other servers do."""

    input: str | list[dict[str, Any]]
    model: str | None = None
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = "auto"
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str] | None = None
    stream: bool | None = None
    store: bool | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    truncation: Literal["auto", "disabled"] | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool | None = None
    max_tool_calls: int | None = None
    prompt: Any = None
    include: list[str] | None = None
    top_logprobs: int | None = None


_DECODER: Final = msgspec.json.Decoder(ResponseRequest)


def read_response(body: bytes) -> tuple[ResponseRequest, ChatRequest]:
    """Read a request, and return the chat that answers it too.

    Raises:
        ApiError: 400 with `param`, when a field is wrong or isn't offered.
    """
    request = decoded(_DECODER, body)
    for name in ("conversation", "prompt", "max_tool_calls", "top_logprobs"):
        if getattr(request, name):
            raise not_offered(name)
    if "message.output_text.logprobs" in (request.include or ()):
        raise not_offered("include")
    if request.truncation == "auto":
        raise not_offered("truncation")
    if not request.input:
        raise ApiError(400, "input: a text, or items; not empty.", param="input")
    return request, chat_of(request, [])


def items_of(request: ResponseRequest) -> list[dict[str, Any]]:
    """Return the input as items."""
    return [{"role": "user", "content": request.input}] if isinstance(request.input, str) else request.input


def chat_of(request: ResponseRequest, earlier: Sequence[Mapping[str, Any]]) -> ChatRequest:
    """Return the chat that answers a request behind the items of earlier responses.

    Raises:
        ApiError: 400 with `param`, when a field is wrong or isn't offered.
    """
    chat = {
        "model": request.model,
        "messages": _messages(request, earlier),
        "tools": _tools(request.tools or []),
        "tool_choice": _choice(request.tool_choice) if request.tools else None,
        "parallel_tool_calls": request.parallel_tool_calls,
        "response_format": _format(request.text or {}),
        "temperature": request.temperature,
        "top_p": request.top_p,
        "max_completion_tokens": request.max_output_tokens,
    }
    given = {name: value for name, value in chat.items() if value not in (None, [], "")}
    try:
        return read_chat(msgspec.json.encode(given))
    except ApiError as e:
        raise ApiError(e.status, e.message, param=_renamed(e.param), code=e.code) from e


def _renamed(param: str | None) -> str | None:
    """Return the field of this API that a field of a chat was made of."""
    if param is None:
        return None
    for theirs, ours in (("messages", "input"), ("max_completion_tokens", "max_output_tokens")):
        if param.startswith(theirs):
            return ours
    return "text.format" if param.startswith("response_format") else param


def _messages(request: ResponseRequest, earlier: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if request.instructions:
        messages.append({"role": "system", "content": request.instructions})
    for item in earlier:
        _add(messages, item, "previous_response_id")
    for at, item in enumerate(items_of(request)):
        _add(messages, item, f"input[{at}]")
    return messages


def _add(messages: list[dict[str, Any]], item: Mapping[str, Any], path: str) -> None:
    """Add an item of the input; calls that stand together are one message of the assistant."""
    match item.get("type", "message"):
        case "message" if isinstance(item.get("role"), str):
            messages.append({"role": item["role"], "content": _text(item.get("content", ""), f"{path}.content")})
        case "function_call" if isinstance(item.get("name"), str) and isinstance(item.get("call_id"), str):
            function = {"name": item["name"], "arguments": item.get("arguments") or "{}"}
            call = {"id": item["call_id"], "type": "function", "function": function}
            if messages and "tool_calls" in messages[-1]:
                messages[-1]["tool_calls"].append(call)
            else:
                messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        case "function_call_output" if isinstance(item.get("call_id"), str):
            content = _text(item.get("output", ""), f"{path}.output")
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": content})
        case "reasoning":
            pass
        case "message" | "function_call" | "function_call_output":
            raise ApiError(400, f"{path}: a field is missing, or has the wrong type.", param=path)
        case _:
            raise ApiError(400, f"{path}.type: this server doesn't know items of this type.", param=f"{path}.type")


def _text(content: Any, path: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ApiError(400, f"{path}: a text, or a list of parts.", param=path)
    texts = []
    for at, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("text", part.get("refusal")) if isinstance(part, dict) else None
        if not (isinstance(kind, str) and kind in _TEXT_PARTS and isinstance(text, str)):
            told = f"{path}[{at}]: text alone can be answered here."
            raise ApiError(400, told, param=f"{path}[{at}]", code="unsupported_parameter")
        texts.append(text)
    return "".join(texts)


def _tools(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the functions among the tools. Coding agents offer others beside them, which no model here can call."""
    functions = [tool for tool in tools if tool.get("type") == "function"]
    if tools and not functions:
        raise ApiError(400, "tools[0].type: only functions can be tools here.", param="tools[0].type")
    return [_tool(tool) for tool in functions]


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    names = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {name: tool[name] for name in names if tool.get(name) is not None}}


def _choice(choice: Any) -> Any:
    if isinstance(choice, dict) and choice.get("type") == "function" and "function" not in choice:
        return {"type": "function", "function": {"name": choice.get("name")}}
    return choice


def _format(text: Mapping[str, Any]) -> Any:
    given = text.get("format")
    if isinstance(given, dict) and given.get("type") == "json_schema":
        schema = {name: given[name] for name in ("name", "schema", "strict", "description") if name in given}
        return {"type": "json_schema", "json_schema": schema}
    return given
