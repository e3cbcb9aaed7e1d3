"""JSON of the API server, which nests ten times as deep as Python reads: one object must not end the whole operator."""

from __future__ import annotations

import json
import re
from typing import Any, Final

_DEEPEST: Final = 64
"""No field of Kubernetes's, and none of ours, is as deep; what is has no meaning to anybody."""
_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{}]')


def decoded(data: bytes) -> Any:
    """What a text says; of one that is too deep to be read, without its depths.

    Raises:
        ValueError: it is no JSON.
    """
    try:
        return json.loads(data)
    except RecursionError:
        return json.loads(shallow(data))


def shallow(data: bytes, deepest: int = _DEEPEST) -> bytes:
    r"""The same text with null for each list and each object that is deeper.

    Example:
        >>> shallow(b'{"a":{"b":[1,[2]],"c":"]}\\""},"d":[[],3]}', deepest=2)
        b'{"a":{"b":null,"c":"]}\\""},"d":[null,3]}'
    """
    parts: list[bytes] = []
    copied, depth = 0, 0
    for token in _TOKEN.finditer(data):
        mark = token[0]
        if mark in (b"{", b"["):
            if depth == deepest:
                parts += data[copied : token.start()], b"null"
                copied = len(data)
            depth += 1
        elif mark in (b"}", b"]"):
            depth -= 1
            if depth == deepest:
                copied = token.end()
    return b"".join([*parts, data[copied:]])
