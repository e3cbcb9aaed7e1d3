"""Texts as every client of the API server can show them: programs print what they like."""

from __future__ import annotations

import re
from typing import Any, Final

_UNPRINTABLE: Final = re.compile("[\x7f-\x9f\ud800-\udfff\ufeff\ufffe\uffff]")
"""The API server's JSON has them as they are, and kubectl's YAML refuses the whole object, and any list that has it.
Characters before the blank stay: JSON escapes them."""


def printable(value: Any) -> Any:
    r"""A value of JSON with U+FFFD for each character that YAML doesn't allow.

    Example:
        >>> printable({"output": ["\x1b[31mred\x7f\x85", 1, None]})
        {'output': ['\x1b[31mred��', 1, None]}
    """
    if isinstance(value, str):
        return _UNPRINTABLE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {key: printable(each) for key, each in value.items()}
    if isinstance(value, list):
        return [printable(each) for each in value]
    return value
