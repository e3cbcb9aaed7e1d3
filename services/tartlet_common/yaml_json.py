"""Writes JSON that is valid YAML as well.

Kubernetes' API server reads the body of a server-side apply as YAML, whose readers accept fewer characters than JSON's.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

REFUSED: Final = "\x7f-\x84\x86-\x9f\ufffe\uffff"
"""The characters that YAML readers refuse and `json` doesn't escape, written as a set for a regular expression."""
_ESCAPED: Final = re.compile(f"[{REFUSED}\x85\u2028\u2029\ufeff]")
"""Those, and the characters that YAML readers take for an end of line or a byte order mark."""


def dumps(value: Any) -> bytes:
    r"""Encode a value as bytes that are JSON and YAML.

    Characters above U+FFFF are not escaped: JSON would write each as two surrogates, which YAML readers refuse.

    Example:
        >>> dumps({"a": "\U0001f600\x7f"}).decode()
        '{"a": "😀\\u007f"}'
    """
    text = json.dumps(value, ensure_ascii=False)
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode(errors="replace")
