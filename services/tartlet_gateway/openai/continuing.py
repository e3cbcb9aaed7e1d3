"""`continue_final_message`: the answer goes on with a text that the request's last message began."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tartlet_gateway.openai.errors import ApiError

_FIELD: Final = "continue_final_message"


def check_continued(message: Mapping[str, Any], *, add_generation_prompt: bool | None) -> None:
    """Check that an answer can go on with a chat's last message.

    Args:
        message: the last message.
        add_generation_prompt: the request's field; true asks for an answer that begins anew.

    Raises:
        ApiError: 400 with `param`.

    Example:
        >>> check_continued({"role": "assistant", "content": "374+588="}, add_generation_prompt=None)
        >>> check_continued({"role": "user", "content": "Hi"}, add_generation_prompt=None)
        Traceback (most recent call last):
        tartlet_gateway.openai.errors.ApiError: continue_final_message: the last message is not the assistant's.
    """
    if add_generation_prompt:
        told = "the answer can't both go on and begin anew: leave add_generation_prompt out."
    elif message.get("role") != "assistant":
        told = "the last message is not the assistant's."
    elif message.get("tool_calls"):
        told = "the last message calls tools, so no text goes on."
    elif not _text(message.get("content")):
        told = "the last message ends without a text."
    else:
        return
    raise ApiError(400, f"{_FIELD}: {told}", param=_FIELD)


def _text(content: Any) -> str:
    """Return the text that a message ends with, "" for none."""
    if isinstance(content, list):
        part = content[-1] if content else None
        content = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
    return content if isinstance(content, str) else ""
