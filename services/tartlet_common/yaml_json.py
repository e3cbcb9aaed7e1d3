"""JSON that is YAML, too: Kubernetes' API server reads what is applied on its side as YAML, which takes less."""

from __future__ import annotations

import json
import re
from typing import Any, Final

_ESCAPED: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""YAML refuses them, or takes them for ends of lines."""


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
