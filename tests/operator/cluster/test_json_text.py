"""Texts that are deeper than Python reads lose their depths, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tartlet_operator.cluster.json_text import decoded, shallow
from tartlet_operator.machinery.watch import weight

TEXTS = st.text('"\\[]{}a\u00e9 \n', max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda each: st.lists(each, max_size=3) | st.dictionaries(TEXTS, each, max_size=3),
    max_leaves=30,
)


def cut(value: Any, deepest: int) -> Any:
    if isinstance(value, dict | list) and deepest == 0:
        return None
    if isinstance(value, dict):
        return {key: cut(each, deepest - 1) for key, each in value.items()}
    return [cut(each, deepest - 1) for each in value] if isinstance(value, list) else value


@given(VALUES, st.integers(0, 5), st.booleans())
def test_what_is_deeper_is_null_and_the_rest_as_it_was(value: Any, deepest: int, plain: bool) -> None:
    text = json.dumps(value, ensure_ascii=plain).encode()
    assert json.loads(shallow(text, deepest)) == cut(value, deepest)
    assert decoded(text) == value


@pytest.mark.parametrize(("opening", "closing"), [('{"a":', "}"), ("[", "]")])
def test_a_text_of_any_depth_is_read_and_a_torn_one_is_none(opening: str, closing: str) -> None:
    text = f'{{"deep":{opening * 9000}1{closing * 9000},"name":"n"}}'.encode()
    assert decoded(text)["name"] == "n"
    with pytest.raises(ValueError, match="Expecting"):
        decoded(text[:9000])


def test_a_body_of_any_depth_is_weighed() -> None:
    body: Any = "text"
    for _ in range(5000):
        body = {"a": [body]}
    assert weight(body) == weight("text")
