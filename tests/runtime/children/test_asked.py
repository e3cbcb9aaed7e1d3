"""What a SPAWN may ask for, and what a child has of its parent."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tartlet_common.config.settings import RuntimeSettings
from tartlet_common.errors.registry import InvalidArgument
from tartlet_protos import common_pb2
from tartlet_runtime.abi.limits import default_limits, resolve
from tartlet_runtime.children.asked import Asked, key_of, seed_of, sending_key, within

KEYS = st.sampled_from(["", "a", "pages", "deadline_s"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | KEYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(["inferlet", "args", "model", "detached", "children", "limits", "other"])


@given(st.binary(max_size=40) | st.dictionaries(NAMES, VALUES, max_size=5).map(lambda told: json.dumps(told).encode()))
def test_whatever_is_asked_for_is_understood_or_refused(payload: bytes) -> None:
    try:
        asked = Asked.of(payload)
    except InvalidArgument:
        return
    assert common_pb2.Limits(**asked.limits).deadline_s >= 0
    assert all(isinstance(arg, str) for arg in asked.args)
    assert 0 <= asked.children <= 1 << 20


@pytest.mark.parametrize("name", ["pages", "memory_bytes"])
@pytest.mark.parametrize("value", [-1, 1 << 32, 1.5, True, "1", None])
def test_a_limit_that_is_no_number_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidArgument):
        Asked.of(json.dumps({"limits": {name: value}}).encode())


@pytest.mark.parametrize("told", [{"inferlet": "\ud800"}, {"args": ["a", "\udfff"]}, {"model": "\ud800"}])
def test_half_of_a_surrogate_pair_is_no_text(told: object) -> None:
    with pytest.raises(InvalidArgument):
        Asked.of(json.dumps(told).encode())


NUMBERS = st.integers(0, 1 << 20)
SECONDS = st.floats(0, 1e6)


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS, SECONDS, SECONDS)
def test_a_child_never_has_more_than_its_parent(
    pages: int, memory: int, parents_pages: int, parents_memory: int, deadline_s: float, left_s: float
) -> None:
    parent = replace(default_limits(RuntimeSettings()), pages=parents_pages, memory_bytes=parents_memory)
    asked = common_pb2.Limits(pages=pages, memory_bytes=memory, deadline_s=deadline_s)
    limits = resolve(asked, parent)
    child = replace(limits, **within(limits, parent, left_s, 3))
    assert child.memory_bytes <= parent.memory_bytes
    assert not parents_pages or 0 < child.pages <= parents_pages
    assert not left_s or 0 < child.deadline_s <= left_s
    assert child.pages in {pages, parents_pages}
    assert child.children == 3


def test_keys_and_seeds_tell_parents_runs_and_tickets_apart() -> None:
    cases = [(parent, bytes([run]) * 16, ticket) for parent in ("p", "q") for run in (1, 2) for ticket in (1, 2)]
    assert len({key_of(*case) for case in cases}) == len({sending_key(*case) for case in cases}) == 8
    assert len({seed_of(run, ticket) for _, run, ticket in cases}) == 4
    assert len(seed_of(bytes(16), 1)) == 16
