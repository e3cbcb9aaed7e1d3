"""Makes texts showable to every client of the API server, because programs may print any character."""

from __future__ import annotations

import re
from typing import Any, Final

from tartlet_common.yaml_json import REFUSED

_UNPRINTABLE: Final = re.compile(f"[{REFUSED}\ud800-\udfff]")
"""Characters that the API server's JSON may hold but YAML may not, and halves of surrogate pairs, which JSON can't
hold.

kubectl reads JSON as YAML, and refuses a whole object, and any list with it, that holds such a character.
"""


def printable(value: Any) -> Any:
    r"""Return a JSON value with U+FFFD for each character that kubectl can't show as YAML.

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
