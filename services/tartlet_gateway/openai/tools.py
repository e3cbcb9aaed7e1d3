"""Tools of a chat request, checked before anything runs."""

from __future__ import annotations

import re
from typing import Any, Final

from tartlet_gateway.openai.errors import ApiError

MAX_TOOLS: Final = 512
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def check_tools(tools: list[Any], choice: Any) -> None:
    """Check `tools` and `tool_choice`.

    Raises:
        ApiError: 400, one of them is wrong.
    """
    if len(tools) > MAX_TOOLS:
        raise ApiError(400, f"tools: {len(tools)}, more than {MAX_TOOLS}.", param="tools")
    names = [_name(tool, f"tools[{at}]") for at, tool in enumerate(tools)]
    if len(set(names)) < len(names):
        raise ApiError(400, "tools: two have the same name.", param="tools")
    if choice is None or choice == "none":
        return
    named = _chosen(choice)
    if not tools:
        raise ApiError(400, "tool_choice needs tools: add some, or leave it out.", param="tool_choice")
    if named not in ("", *names):
        raise ApiError(400, "tool_choice names a function that isn't among the tools.", param="tool_choice")


def forces(choice: Any) -> bool:
    """Return whether a `tool_choice` wants a call in any case.

    Example:
        >>> forces("required"), forces("auto")
        (True, False)
    """
    return choice not in (None, "auto", "none")


def _name(tool: Any, path: str) -> str:
    """Return a tool's name, and check the rest of it."""
    if not isinstance(tool, dict) or tool.get("type") != "function":
        raise ApiError(400, f"{path}.type: only functions can be tools here.", param=f"{path}.type")
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(name, str) or not _NAME.fullmatch(name):
        told = "letters, digits and _ . - make a name, up to 64"
        raise ApiError(400, f"{path}.function.name: {told}.", param=f"{path}.function.name")
    if not isinstance(function.get("parameters", {}), dict | None):
        raise ApiError(400, f"{path}.function.parameters: an object.", param=f"{path}.function.parameters")
    return name


def _chosen(choice: Any) -> str:
    """Return the function that a `tool_choice` names, "" for none."""
    if choice in ("auto", "required"):
        return ""
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        told = 'tool_choice: "none", "auto", "required" or {"type": "function", "function": {"name": ...}}.'
        raise ApiError(400, told, param="tool_choice")
    return name
