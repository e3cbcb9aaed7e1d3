"""Every error of a cluster fills its message, whatever its fields hold, and says what to do."""

from __future__ import annotations

import string

import pytest

from tartlet_cli.cluster import errors
from tartlet_common.errors.registry import TartletError

KINDS = [
    cls
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, TartletError) and cls.__module__ == errors.__name__
]


@pytest.mark.parametrize("cls", KINDS, ids=lambda c: c.__name__)
@pytest.mark.parametrize("value", ["text", 0.5])
def test_message_and_remedy_are_filled(cls: type[TartletError], value: object) -> None:
    texts = (cls.message, cls.remedy)
    names = {name for text in texts for _, name, _, _ in string.Formatter().parse(text) if name}
    error = cls(**dict.fromkeys(names, value))
    assert "{" not in error.explained
    assert error.remedy.endswith(".")
