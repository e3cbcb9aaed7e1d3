"""Who acts for which tenant: certificates decide, metadata only narrows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tartlet_common.errors.registry import PermissionDenied
from tartlet_common.rpc.access import IDENTITIES, Caller
from tartlet_common.rpc.tenancy import EVERY_TENANT, EVERYONE, HEADER, Scope, decide

TENANTS = st.sampled_from(["", "a", "b", "team-c"])
CALLERS = st.builds(Caller, st.sampled_from(["", *sorted(IDENTITIES)]), TENANTS)
METADATA = st.lists(
    st.tuples(st.sampled_from([HEADER, "tartlet-relayed", "x-tenant"]), TENANTS.map(str.encode)), max_size=3
)


@given(CALLERS, METADATA, TENANTS)
def test_what_a_call_says_widens_nothing_that_its_certificate_gives(
    caller: Caller, metadata: list[tuple[str, str | bytes]], tenant: str
) -> None:
    given_by_certificate, scope = decide(caller, []), decide(caller, metadata)
    assert given_by_certificate.allows(tenant) or not scope.allows(tenant)
    assert (given_by_certificate == EVERYONE) == (caller.role in EVERY_TENANT)
    if caller.role not in EVERY_TENANT:  # a client is bound to the one tenant that its certificate names
        assert scope == Scope(caller.tenant)


@given(METADATA)
def test_a_socket_of_ones_own_acts_for_all_unless_the_call_says_otherwise(
    metadata: list[tuple[str, str | bytes]],
) -> None:
    said = [bytes(value).decode() for key, value in metadata if key == HEADER and isinstance(value, bytes)]
    assert decide(None, metadata) == (Scope(said[0]) if said else EVERYONE)


@given(st.one_of(st.none(), TENANTS), TENANTS)
def test_what_is_made_belongs_to_a_tenant_that_the_caller_acts_for(own: str | None, asked: str) -> None:
    scope = Scope(own)
    try:
        made = scope.own(asked, "Launch")
    except PermissionDenied:
        assert asked
        assert not scope.allows(asked)
    else:
        assert scope.allows(made)
        assert made == asked or (not asked and made == own)


def test_a_call_for_another_tenant_is_told_which_one_it_acts_for() -> None:
    with pytest.raises(PermissionDenied, match="tenant 'a' may not call Launch for tenant 'b'"):
        Scope("a").own("b", "Launch")
    assert decide(None, Scope("ä").metadata) == Scope("ä")
