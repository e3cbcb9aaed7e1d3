"""Bodies of `POST /v1/messages`, made the body of a chat completion, which is checked as one."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from tartlet_gateway.openai.bodies import decoded
from tartlet_gateway.openai.errors import ApiError
from tartlet_gateway.openai.requests import ChatRequest, read_chat

_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}
_RENAMED: Final = (
    ("max_completion_tokens", "max_tokens"),
    ("stop", "stop_sequences"),
    ("response_format", "output_config.format"),
)


class Said(Struct):
    """A message of the conversation."""

    role: str
    content: str | list[dict[str, Any]]


class MessagesRequest(Struct, kw_only=True):
    """The body. Fields that aren't here, such as `thinking`, are ignored."""

    max_tokens: int
    messages: list[Said]
    model: str | None = None
    system: str | list[dict[str, Any]] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None


class CountRequest(MessagesRequest, kw_only=True):
    """The body of `POST /v1/messages/count_tokens`: the same, but nothing is generated."""

    max_tokens: int = 1


_DECODER: Final = msgspec.json.Decoder(MessagesRequest)
_COUNT_DECODER: Final = msgspec.json.Decoder(CountRequest)


def read_messages(body: bytes) -> tuple[MessagesRequest, ChatRequest]:
    """Read a request, and return the chat that answers it too.

    Raises:
        ApiError: 400 with `param`, when a field is wrong or isn't offered.
    """
    request = decoded(_DECODER, body)
    return request, _chat_of(request)


def read_count(body: bytes) -> tuple[MessagesRequest, ChatRequest]:
    """Read a request to count tokens, and return the chat whose prompt is counted.

    Raises:
        ApiError: 400 with `param`, when a field is wrong or isn't offered.
    """
    request = decoded(_COUNT_DECODER, body)
    return request, _chat_of(request)


def _chat_of(request: MessagesRequest) -> ChatRequest:
    messages: list[dict[str, Any]] = []
    if request.system:
        messages.append({"role": "system", "content": _text(request.system, "system")})
    for at, said in enumerate(request.messages):
        messages += _chat_messages(said, f"messages[{at}]")
    chat = {
        "model": request.model,
        "messages": messages,
        "tools": [_tool(tool, f"tools[{at}]") for at, tool in enumerate(request.tools or ())],
        "tool_choice": _choice(request.tool_choice) if request.tools else None,
        "parallel_tool_calls": False if (request.tool_choice or {}).get("disable_parallel_tool_use") else None,
        "stop": request.stop_sequences,
        "response_format": _format((request.output_config or {}).get("format")),
        "temperature": request.temperature,
        "top_k": request.top_k,
        "top_p": request.top_p,
        "max_completion_tokens": request.max_tokens,
        "continue_final_message": _is_begun(messages[-1]) if messages else None,
    }
    given = {name: value for name, value in chat.items() if value not in (None, [], "")}
    try:
        return read_chat(msgspec.json.encode(given))
    except ApiError as e:
        param = e.param or ""
        theirs = next((ours for name, ours in _RENAMED if param.startswith(name)), param)
        raise ApiError(e.status, e.message.replace(param, theirs, 1), param=theirs or None, code=e.code) from e


def _is_begun(message: dict[str, Any]) -> bool | None:
    """Return True for the beginning of an answer, which the answer goes on with; None for any other message."""
    begun = message["role"] == "assistant" and message["content"] and "tool_calls" not in message
    return True if begun else None


def _chat_messages(said: Said, path: str) -> list[dict[str, Any]]:
    """Return the messages of a chat that one message is: results of tools are messages of their own there."""
    if said.role == "system":  # Claude Code tells changes of its instructions so
        return [{"role": "system", "content": _text(said.content, f"{path}.content")}]
    if said.role not in ("user", "assistant"):
        raise ApiError(400, f"{path}.role: user, assistant or system.", param=f"{path}.role")
    if isinstance(said.content, str):
        return [{"role": said.role, "content": said.content}]
    results: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    texts: list[str] = []
    for at, block in enumerate(said.content):
        where = f"{path}.content[{at}]"
        match block.get("type"):
            case "text" if isinstance(block.get("text"), str):
                texts.append(block["text"])
            case "tool_use" if isinstance(block.get("id"), str) and isinstance(block.get("name"), str):
                arguments = msgspec.json.encode(block.get("input") or {}).decode()
                function = {"name": block["name"], "arguments": arguments}
                calls.append({"id": block["id"], "type": "function", "function": function})
            case "tool_result" if isinstance(block.get("tool_use_id"), str):
                content = _text(block.get("content") or "", f"{where}.content")
                results.append({"role": "tool", "tool_call_id": block["tool_use_id"], "content": content})
            case "thinking" | "redacted_thinking":
                pass
            case "text" | "tool_use" | "tool_result":
                raise ApiError(400, f"{where}: a field is missing, or has the wrong type.", param=where)
            case _:
                raise ApiError(400, f"{where}.type: this server doesn't know blocks of this type.", param=where)
    own: list[dict[str, Any]] = []
    if texts or calls or not results:
        own.append({"role": said.role, "content": "".join(texts)} | ({"tool_calls": calls} if calls else {}))
    return [*results, *own]


def _text(content: Any, path: str) -> str:
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else [None]
    texts = [
        b["text"] for b in blocks if isinstance(b, dict) and b.get("type") == "text" and isinstance(b.get("text"), str)
    ]
    if len(texts) < len(blocks):
        raise ApiError(400, f"{path}: a text, or blocks of text alone.", param=path, code="unsupported_parameter")
    return "".join(texts)


def _tool(tool: dict[str, Any], path: str) -> dict[str, Any]:
    if tool.get("type", "custom") != "custom" or not isinstance(tool.get("name"), str):
        raise ApiError(400, f"{path}: only tools of the client's own, with a name, can be called here.", param=path)
    function = {"name": tool["name"], "parameters": tool.get("input_schema") or {"type": "object"}}
    return {"type": "function", "function": function | ({"description": d} if (d := tool.get("description")) else {})}


def _format(form: Any) -> Any:
    if form is None:
        return None
    if not isinstance(form, dict) or form.get("type") != "json_schema":
        told = "output_config.format: an object with the type json_schema and a schema."
        raise ApiError(400, told, param="output_config.format")
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": form.get("schema")}}


def _choice(choice: dict[str, Any] | None) -> Any:
    if choice is None:
        return None
    if choice.get("type") == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    found = _CHOICES.get(str(choice.get("type")))
    if found is None:
        raise ApiError(400, "tool_choice.type: auto, any, none or tool.", param="tool_choice.type")
    return found
