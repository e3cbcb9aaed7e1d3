"""JSON that is YAML, too: Kubernetes' API server reads what is applied on its side as YAML, which takes less."""

from __future__ import annotations

import json
import re
from typing import Any, Final

REFUSED: Final = "\x7f-\x84\x86-\x9f\ufffe\uffff"
"""What YAML's readers refuse that JSON doesn't escape by itself, as a set in a regular expression has it."""
_ESCAPED: Final = re.compile(f"[{REFUSED}\x85\u2028\u2029\ufeff]")
"""They refuse these, or take them for ends of lines."""


def dumps(value: Any) -> bytes:
    r"""A value as both.

    Characters past the first 65,536 stay as they are: JSON would write each as two escaped surrogates, which YAML's
    readers refuse.

    Example:
        >>> dumps({"a": "\U0001f600\x7f"}).decode()
        '{"a": "😀\\u007f"}'
    """
    text = json.dumps(value, ensure_ascii=False)
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode(errors="replace")
