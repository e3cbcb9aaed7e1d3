"""Malformed requests are typed errors of their call, whatever they are, and nothing of them stays."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tartlet_common.capabilities import Ceilings, Grant, check_http
from tartlet_common.egress.hosts import HostPattern, Url
from tartlet_common.errors.registry import InvalidArgument, InvalidConfig, NotAllowed, RequestFailed, TartletError
from tartlet_runtime.web.asked import MAX_HEADERS, Asked, read_headers
from tartlet_runtime.web.exchange import Exchanges

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
HEAD = st.fixed_dictionaries(
    {},
    optional={
        "method": st.sampled_from(["GET", "POST", "get", "CONNECT", "TRACE", ""]) | ANY_JSON,
        "url": st.sampled_from(["http://h/", "https://h:1/a?b", "h", "http://a@h/", "http://[::1/"]) | ANY_JSON,
        "headers": st.lists(st.tuples(st.text(max_size=9), st.text(max_size=9)), max_size=3) | ANY_JSON,
        "timeout_s": st.floats() | ANY_JSON,
        "redirects": st.integers() | ANY_JSON,
        "other": ANY_JSON,
    },
)


@settings(max_examples=300, deadline=None)
@given(HEAD | ANY_JSON, st.binary(max_size=4))
def test_a_request_is_read_or_refused_with_a_typed_error(head: Any, body: bytes) -> None:
    asked = read(json.dumps(head).encode(), body)
    if isinstance(asked, InvalidArgument):
        assert asked.fields["argument"]
        assert len(asked.text) < 5000
        return
    assert asked.url.origin.scheme in {"http", "https"}
    assert 0 < asked.timeout_s <= 600
    assert Url.of(str(asked.url)) == asked.url, "what is sent is read again as the same"


def read(head: bytes, body: bytes) -> Asked | InvalidArgument:
    try:
        return Asked.of(head, body)
    except InvalidArgument as e:
        return e


@pytest.mark.parametrize("url", ["http://a.b/\ud800", "http://a.b/?\udfff", "http://\ud800.b/"])
def test_half_of_a_surrogate_pair_is_no_text(url: str) -> None:
    assert isinstance(read(json.dumps({"method": "GET", "url": url}).encode(), b""), InvalidArgument)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=64))
def test_bytes_that_are_no_json_are_refused(head: bytes) -> None:
    with pytest.raises(InvalidArgument):
        Asked.of(head, b"")


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=40), st.text(max_size=40))
def test_a_redirect_leads_to_a_plain_url_or_is_refused(location: str, host: str) -> None:
    asked = Asked("GET", Url.of("https://h/a/b"))
    for to in (location, f"//{host}/x", f"http://{host}"):
        try:
            after = asked.after(302, to)
        except RequestFailed:
            continue
        if after is not None:
            assert Url.of(str(after.url)) == after.url


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=30))
def test_a_pattern_is_read_or_refused_and_a_plain_one_never_allows_another_host(text: str) -> None:
    try:
        pattern = HostPattern.of(text)
    except InvalidArgument:
        return
    if not pattern.host.startswith("*"):
        assert not pattern.allows(Url.of("https://other.example/").origin) or pattern.host == "other.example"


def test_headers_that_are_the_hosts_own_or_split_a_request_are_refused() -> None:
    for name, value in (
        *(("Host", "x"), ("content-length", "1"), ("Transfer-Encoding", "chunked"), ("Proxy-Authorization", "x")),
        *(("a\r\nb", "c"), ("a", "b\r\nc: d"), ("a", "b\0"), ("", "x"), ("a b", "x"), ("a", "\u0101")),
    ):
        with pytest.raises(InvalidArgument):
            read_headers([[name, value]])
    with pytest.raises(InvalidArgument):
        read_headers([["a", "b"]] * (MAX_HEADERS + 1))
    with pytest.raises(InvalidArgument):
        read_headers([["a", "b" * 40_000]])


def test_methods_of_redirects_and_of_repetitions() -> None:
    url = Url.of("https://h/")
    post = Asked("POST", url, (("Content-Type", "t"), ("A", "b")), b"x")
    for status, method, body in ((301, "GET", b""), (303, "GET", b""), (307, "POST", b"x"), (308, "POST", b"x")):
        after = post.after(status, "/b")
        assert after is not None
        assert (after.method, after.body, after.url.target) == (method, body, "/b")
    assert post.after(200, "/b") is None
    assert post.after(302, None) is None
    put = Asked("PUT", url, (), b"x").after(302, "/b")
    assert put is not None
    assert put.method == "PUT"
    assert [Asked(m, url).repeats for m in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS", "POST", "PATCH")] == [
        *([True] * 5),
        *([False] * 2),
    ]
    assert Asked("POST", url, (("idempotency-KEY", "k"),)).repeats


def test_all_grants_must_allow_a_host() -> None:
    ceilings = Ceilings.of(["*.example.org", "a=https://api.test:8443", "a=b.test:*"])
    for tenant, url, allowed in (
        ("", "http://x.example.org/", True),
        ("", "http://example.org/", False),
        ("", "http://example.org.evil.test/", False),
        ("a", "https://api.test:8443/", True),
        ("a", "https://api.test/", False),
        ("a", "http://api.test:8443/", False),
        ("a", "http://b.test:99/", True),
        ("b", "http://b.test:99/", False),
    ):
        grants = [Grant("launch", ("*",)), ceilings.of_tenant(tenant)]
        if allowed:
            check_http(grants, Url.of(url).origin)
        else:
            with pytest.raises(NotAllowed):
                check_http(grants, Url.of(url).origin)
    with pytest.raises(InvalidConfig):
        Ceilings.of(["http://h/path"])


def test_a_number_in_use_and_one_that_is_unknown_are_typed_errors() -> None:
    exchanges = Exchanges()
    with pytest.raises(TartletError):
        exchanges.at(3)
    assert exchanges.drop(3) == 0
