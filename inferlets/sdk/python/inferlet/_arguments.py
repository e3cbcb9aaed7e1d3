"""Checks of what programs pass, with what to write instead. Of constructors and entry points: none is made a token."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any


def whole(name: str, value: Any, least: int | None = None) -> None:
    """Refuse what is no whole number of at least `least`."""
    if not hasattr(value, "__index__"):
        raise TypeError(f"{name} is a whole number, not {value!r}")
    if least is not None and value < least:
        raise ValueError(f"{name} is {value}, it must be at least {least}")


def number(name: str, value: Any) -> None:
    """Refuse what is no number."""
    if not hasattr(value, "__float__"):
        raise TypeError(f"{name} is a number, not {value!r}")


def text(name: str, value: Any, otherwise: str = "") -> None:
    """Refuse what is no text; `otherwise` says what takes something else."""
    if not isinstance(value, str):
        raise TypeError(f"{name} takes a str, not {value!r}{otherwise}")


def token_list(name: str, values: Iterable[Any]) -> list[int]:
    """Token ids as a list.

    Example:
        >>> token_list("fill_tokens", range(3))
        [0, 1, 2]
    """
    try:
        ids = list(values)
        array("I", ids)
    except TypeError:
        raise TypeError(f"{name} takes a list of token ids, not {values!r}") from None
    except OverflowError:
        raise ValueError(f"{name} takes token ids, which are at least 0, not {values!r}") from None
    return ids


def messages(name: str, values: Any) -> list[dict[str, object]]:
    """Chat messages as a list."""
    if isinstance(values, (list, tuple)) and all(isinstance(value, dict) for value in values):
        return list(values)
    wanted = "[{'role': 'user', 'content': 'Hello'}]"
    raise TypeError(f"{name} takes a list of messages, such as {wanted}, not {values!r}")
