"""Checks of arguments, whose errors say what to write instead. They run once for each call, not for each token."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

SHOWN = 80
"""Characters of an argument that a message shows."""


def shown(value: Any) -> str:
    """Return how an error message shows a value; a long text is cut.

    Example:
        >>> shown("a" * 100)[-9:], shown([1, 2])
        ('aaaaaa...', '[1, 2]')
    """
    text = repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def whole(name: str, value: Any, least: int | None = None) -> None:
    """Check that a value is a whole number of at least `least`."""
    if not hasattr(value, "__index__"):
        raise TypeError(f"{name} is a whole number, not {shown(value)}")
    if least is not None and value < least:
        raise ValueError(f"{name} is {value}, it must be at least {least}")


def number(name: str, value: Any) -> None:
    """Check that a value is a number."""
    if not hasattr(value, "__float__"):
        raise TypeError(f"{name} is a number, not {shown(value)}")


def text(name: str, value: Any, otherwise: str = "") -> None:
    """Check that a value is a text; `otherwise` says which calls take other values."""
    if not isinstance(value, str):
        raise TypeError(f"{name} takes a str, not {shown(value)}{otherwise}")


def token_list(name: str, values: Iterable[Any]) -> list[int]:
    """Return token ids as a list.

    Example:
        >>> token_list("fill_tokens", range(3))
        [0, 1, 2]
    """
    try:
        ids = list(values)
        array("I", ids)
    except (TypeError, RuntimeError):  # the latter of a future that is iterated
        raise TypeError(f"{name} takes a list of token ids, not {shown(values)}") from None
    except OverflowError:
        raise ValueError(f"{name} takes token ids, which are at least 0, not {shown(values)}") from None
    return ids


def messages(name: str, values: Any) -> list[dict[str, object]]:
    """Return chat messages as a list."""
    if isinstance(values, (list, tuple)) and all(isinstance(value, dict) for value in values):
        return list(values)
    wanted = "[{'role': 'user', 'content': 'Hello'}]"
    raise TypeError(f"{name} takes a list of messages, such as {wanted}, not {shown(values)}")


def variables(name: str, values: Any) -> dict[str, object]:
    """Return the variables of a chat template; none may have the name of another argument of the call."""
    if isinstance(values, dict) and all(isinstance(key, str) for key in values):
        taken = {"messages", "tools", "add_generation_prompt"} & set(values)
        if not taken:
            return values
        raise TypeError(f"{name} takes {' and '.join(sorted(taken))} as arguments of their own, not in variables")
    wanted = "{'enable_thinking': False}"
    raise TypeError(f"{name} takes the template's variables by their names, such as {wanted}, not {shown(values)}")


def tools(name: str, values: Any) -> list[dict[str, object]]:
    """Return descriptions of tools as a list."""
    if isinstance(values, (list, tuple)) and all(isinstance(value, dict) for value in values):
        return list(values)
    wanted = "[{'type': 'function', 'function': {'name': 'lookup', 'parameters': {'type': 'object', ...}}}]"
    raise TypeError(f"{name} takes tools as a list of their descriptions, {wanted}, not {shown(values)}")
