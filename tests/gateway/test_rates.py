"""Tenants' rates and concurrency as pure decisions."""

from __future__ import annotations

from tartlet_gateway.access.rates import Rate, Refusal, Tenant, share


def test_requests_beyond_the_rate_wait_as_long_as_the_refusal_says() -> None:
    tenant = Tenant(Rate(requests_per_minute=2), 0.0)
    assert [tenant.admit(0.0), tenant.admit(0.0)] == [None, None]
    refusal = tenant.admit(0.0)
    assert refusal == Refusal("requests", 2, 30.0)
    assert tenant.admit(29.9) is not None
    assert tenant.admit(30.0) is None


def test_tokens_are_settled_at_the_end_and_then_delay_the_next_request() -> None:
    tenant = Tenant(Rate(tokens_per_minute=600), 0.0)
    assert tenant.admit(0.0) is None
    tenant.end(900, 0.0)
    refusal = tenant.admit(0.0)
    assert refusal is not None
    assert (refusal.what, round(refusal.wait_s, 3)) == ("tokens", 30.1)
    assert tenant.admit(30.2) is None


def test_a_run_s_end_counts_once() -> None:
    tenant = Tenant(Rate(tokens_per_minute=60), 0.0)
    assert [tenant.is_first("a"), tenant.is_first("b"), tenant.is_first("a")] == [True, True, False]
    tenant.count(90, 0.0)
    refusal = tenant.admit(0.0)
    assert refusal is not None
    assert (refusal.what, round(refusal.wait_s, 3)) == ("tokens", 31.0)
    assert tenant.running == 0


def test_requests_at_once_are_bounded_until_one_ends() -> None:
    tenant = Tenant(Rate(concurrency=1), 0.0)
    assert tenant.admit(0.0) is None
    refused = tenant.admit(0.0)
    assert refused is not None
    assert refused.what == "concurrency"
    tenant.end(0, 0.0)
    assert tenant.admit(0.0) is None


def test_a_changed_rate_holds_at_once_and_keeps_what_runs() -> None:
    tenant = Tenant(Rate(requests_per_minute=1), 0.0)
    assert tenant.admit(0.0) is None
    tenant.change(Rate(requests_per_minute=1, concurrency=1), 0.0)
    refused = tenant.admit(0.0)
    assert refused is not None
    assert refused.what == "concurrency"


def test_gateways_share_a_rate() -> None:
    assert share(Rate(100, 50, 3), 4) == Rate(25, 12.5, 1)
    assert share(Rate(), 4) == Rate(0, 0, 0)
