"""A request to a chat template, checked: what a template would pass over in silence, or write as Python shows it."""

from __future__ import annotations

import json
import re
from difflib import get_close_matches
from typing import Any, Final

from tartlet_common.errors.registry import InvalidArgument

_ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_MOST_DEEP: Final = 64  # templates indent what is nested, so it grows with the depth
_SLIP: Final = 0.75  # how alike a role and a known one are where it is taken for a slip
_NUMBERED: Final = re.compile(rf"({'|'.join(_ROLES)})[-_\d].*", re.DOTALL)  # one of several of a role


def read(payload: bytes) -> dict[str, Any]:
    """Read the template's variables of a FORMAT_CHAT: `messages`, `tools` and all others.

    Raises:
        InvalidArgument: it is malformed; its field says where.
    """
    try:
        fields = json.loads(payload)
    except (ValueError, RecursionError) as e:
        raise InvalidArgument(argument="format_chat", detail=f"not JSON: {e}") from e
    if not isinstance(fields, dict) or not isinstance(fields.get("messages"), list):
        raise InvalidArgument(argument="format_chat", detail="an object with a list `messages` is wanted")
    if _is_deep(fields):
        raise InvalidArgument(argument="format_chat", detail=f"it is nested more than {_MOST_DEEP} deep")
    tools = fields.get("tools") or None
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise InvalidArgument(argument="tools", detail="a list of objects is wanted")
    messages = [_message(message) for message in fields["messages"]]
    return {"add_generation_prompt": True, "documents": None} | fields | {"messages": messages, "tools": tools}


def slip(role: str) -> str:
    """Return the role that `role` was probably meant to be; empty if it is like none."""
    if role in _ROLES or _NUMBERED.fullmatch(role):
        return ""
    return next(iter(get_close_matches(role.strip().lower(), _ROLES, n=1, cutoff=_SLIP)), "")


def _is_deep(value: Any) -> bool:
    layer = [value]
    for _ in range(_MOST_DEEP):
        layer = [
            inner
            for outer in layer
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not layer:
            return False
    return True


def _message(given: Any) -> dict[str, Any]:
    message: dict[str, Any] = given if isinstance(given, dict) else {}
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise _refusal("one has no role, such as 'user'")
    if not message.get("tool_calls", True):  # None or empty, as clients of other servers write it
        message = {key: value for key, value in message.items() if key != "tool_calls"}
    content = message.get("content")
    if isinstance(content, str):
        return message
    if content is None and "tool_calls" in message:
        return message | {"content": ""}  # templates add it to texts, or look whether it is empty
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        texts = [part.get("text") for part in content]
        if all(isinstance(text, str) for text in texts):
            return message | {"content": "\n".join(texts)}
    if content is None:
        raise _refusal(f"one of the role {role[:40]!r} has no content")
    told = "only text parts can be written" if isinstance(content, list) else "JSON is written with `json.dumps`"
    raise _refusal(f"the content of one of the role {role[:40]!r} is no text: {told}")


def _refusal(told: str) -> InvalidArgument:
    return InvalidArgument(argument="messages", detail=told)
