"""Texts as every client of the API server can show them: programs print what they like."""

from __future__ import annotations

import re
from typing import Any, Final

from tartlet_common.yaml_json import REFUSED

_UNPRINTABLE: Final = re.compile(f"[{REFUSED}\ud800-\udfff]")
"""The API server's JSON has them as they are, and kubectl, which reads it as YAML, refuses the whole object, and any
list that has it; half a surrogate pair it has not at all."""


def printable(value: Any) -> Any:
    r"""A value of JSON with U+FFFD for each character that kubectl can't show as YAML.

    Example:
        >>> printable({"output": ["\x1b[31mred\x7f\x85\uffff", 1, None]})
        {'output': ['\x1b[31mred�\x85�', 1, None]}
    """
    if isinstance(value, str):
        return _UNPRINTABLE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {key: printable(each) for key, each in value.items()}
    if isinstance(value, list):
        return [printable(each) for each in value]
    return value
