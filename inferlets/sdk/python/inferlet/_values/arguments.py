"""Checks of what programs pass, with what to write instead. Of constructors and entry points: none is made a token."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

SHOWN = 80
"""Characters of an argument that a message shows."""


def shown(value: Any) -> str:
    """How a message shows what was given: cut where it is long.

    Example:
        >>> shown("a" * 100)[-9:], shown([1, 2])
        ('aaaaaa...', '[1, 2]')
    """
    text = repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def whole(name: str, value: Any, least: int | None = None) -> None:
    """Refuse what is no whole number of at least `least`."""
    if not hasattr(value, "__index__"):
        raise TypeError(f"{name} is a whole number, not {shown(value)}")
    if least is not None and value < least:
        raise ValueError(f"{name} is {value}, it must be at least {least}")


def number(name: str, value: Any) -> None:
    """Refuse what is no number."""
    if not hasattr(value, "__float__"):
        raise TypeError(f"{name} is a number, not {shown(value)}")


def text(name: str, value: Any, otherwise: str = "") -> None:
    """Refuse what is no text; `otherwise` says what takes something else."""
    if not isinstance(value, str):
        raise TypeError(f"{name} takes a str, not {shown(value)}{otherwise}")


def token_list(name: str, values: Iterable[Any]) -> list[int]:
    """Token ids as a list.

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
    """Chat messages as a list."""
    if isinstance(values, (list, tuple)) and all(isinstance(value, dict) for value in values):
        return list(values)
    wanted = "[{'role': 'user', 'content': 'Hello'}]"
    raise TypeError(f"{name} takes a list of messages, such as {wanted}, not {shown(values)}")


def variables(name: str, values: Any) -> dict[str, object]:
    """A chat template's variables that are none of the call's other arguments."""
    if isinstance(values, dict) and all(isinstance(key, str) for key in values):
        taken = {"messages", "tools", "add_generation_prompt"} & set(values)
        if not taken:
            return values
        raise TypeError(f"{name} takes {' and '.join(sorted(taken))} as arguments of their own, not in variables")
    wanted = "{'enable_thinking': False}"
    raise TypeError(f"{name} takes the template's variables by their names, such as {wanted}, not {shown(values)}")


def tools(name: str, values: Any) -> list[dict[str, object]]:
    """Descriptions of tools as a list."""
    if isinstance(values, (list, tuple)) and all(isinstance(value, dict) for value in values):
        return list(values)
    wanted = "[{'type': 'function', 'function': {'name': 'lookup', 'parameters': {'type': 'object', ...}}}]"
    raise TypeError(f"{name} takes tools as a list of their descriptions, {wanted}, not {shown(values)}")
