"""What programs may share and start: patterns, ceilings, and how grants travel."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tartlet_common.capabilities import SHARED, Grant, SharedCeilings, check_shared
from tartlet_common.errors.registry import InvalidArgument, InvalidConfig, NotAllowed

NAMES = st.text("ab.", min_size=1, max_size=4)
PATTERNS = st.builds(lambda name, star: name + "*" * star, NAMES, st.booleans()) | st.just("*")
SAID = st.none() | st.lists(PATTERNS, max_size=3)


@given(st.lists(st.tuples(SAID, SAID, SAID), max_size=3), st.sampled_from([*SHARED]), NAMES)
def test_everyone_with_a_say_must_allow(said: list[tuple[list[str] | None, ...]], what: str, name: str) -> None:
    grants = [Grant.of("place", (), (), **dict(zip(SHARED, patterns, strict=True))) for patterns in said]
    assert [Grant.from_json(json.loads(json.dumps(grant.to_json()))) for grant in grants] == grants
    wanted = all(
        given is None or any(name == p or (p[-1] == "*" and name.startswith(p[:-1])) for p in given)
        for patterns in said
        for given in [patterns[[*SHARED].index(what)]]
    )
    try:
        check_shared(grants, what, name)
    except NotAllowed:
        assert not wanted
    else:
        assert wanted


@pytest.mark.parametrize("pattern", ["", "a*b", "**", "x" * 257])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidArgument):
        Grant.of("launch", (), topics=[pattern])
    if pattern:
        with pytest.raises(InvalidConfig):
            SharedCeilings.of({"topics": [pattern]})


def test_a_ceiling_that_allows_everything_has_no_say() -> None:
    assert not SharedCeilings().of_tenant("a").limits_sharing
    ceilings = SharedCeilings.of({"topics": ["*"], "names": [], "spawn": ["a=*"]})
    assert ceilings.of_tenant("b").names == ceilings.of_tenant("b").spawn == ()
    assert ceilings.of_tenant("b").topics is None
    assert ceilings.of_tenant("a").spawn is None
