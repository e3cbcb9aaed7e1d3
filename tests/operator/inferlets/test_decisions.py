"""An Inferlet's status, and the entries that control's catalogue should hold."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tartlet_operator.api.conditions import find
from tartlet_operator.api.inferlet import InferletStatus
from tartlet_operator.api.reasons import EventReason, Reason
from tartlet_operator.control.catalogue import entry, fingerprint, sync
from tartlet_operator.inferlets.status import (
    Verdict,
    events,
    model_of,
    runnable,
    status,
)
from tartlet_operator.machinery.store import PoolSeen
from tests.operator.objects import inferlet

NOW = "2026-01-01T00:00:00Z"
POOLS = [PoolSeen("a", "small", ready=True), PoolSeen("b", "large", ready=False)]


def test_a_pool_names_the_model() -> None:
    assert model_of(inferlet(pool="b").spec, POOLS) == "large"
    assert model_of(inferlet(model="x").spec, POOLS) == "x"
    assert model_of(inferlet().spec, POOLS) == ""
    assert model_of(inferlet(pool="c").spec, POOLS) is None


def test_runnable_says_where_and_why_not() -> None:
    ready = Verdict("True", Reason.CATALOGUED, digest="d1")
    want, where = runnable(inferlet().spec, POOLS, ready)
    assert (want.status, where) == ("True", ["a"])
    want, where = runnable(inferlet(pool="b").spec, POOLS, ready)
    assert (want.status, want.reason, where) == ("False", Reason.POOL_NOT_READY, [])
    assert "b" in want.message
    want, _ = runnable(inferlet(pool="c").spec, POOLS, ready)
    assert want.reason == Reason.POOL_NOT_FOUND
    assert "spec.pool" in want.message
    want, _ = runnable(inferlet(model="huge").spec, POOLS, ready)
    assert want.reason == Reason.POOL_NOT_FOUND


def test_a_program_that_names_no_model_is_runnable_where_no_pool_is() -> None:
    valid = Verdict("True", Reason.CATALOGUED, digest="d1")
    want, where = runnable(inferlet().spec, [], valid)
    assert (want.status, want.reason, where) == ("True", Reason.MODEL_NOT_NAMED, [])
    want, _ = runnable(inferlet().spec, [], Verdict("False", Reason.SOURCE_MISSING))
    assert (want.status, want.reason) == ("False", Reason.INFERLET_NOT_READY)
    want, _ = runnable(inferlet(model="m").spec, [], valid)
    assert (want.status, want.reason) == ("False", Reason.POOL_NOT_FOUND)


def test_a_model_that_only_a_shared_pool_serves_is_runnable_there_and_says_where() -> None:
    valid = Verdict("True", Reason.CATALOGUED, digest="d1")
    told = status(
        inferlet(model="m").spec, InferletStatus(), valid, POOLS, generation=1, now=NOW, shared={"m": ("ops/demo",)}
    )
    where = find(told.conditions, "Runnable")
    assert where is not None
    assert (where.status, told.pools) == ("True", [])
    assert "ops/demo" in where.message
    want, _ = runnable(inferlet(model="large").spec, POOLS, valid, ["ops/demo"])
    assert want.reason == Reason.POOL_NOT_READY, "an own pool of the model is waited for"


def test_while_control_is_silent_nobody_knows_what_is_runnable() -> None:
    silent = [PoolSeen("a", "small", ready=False, unknown=True)]
    want, _ = runnable(inferlet(pool="a").spec, silent, Verdict("True", Reason.CATALOGUED, digest="d1"))
    assert (want.status, want.reason) == ("Unknown", Reason.CONTROL_UNREACHABLE)


def test_an_inferlet_outside_the_catalogue_is_not_runnable() -> None:
    def told(old: InferletStatus, verdict: Verdict, **spec: Any) -> tuple[str, str, list[str]]:
        s = status(inferlet(**spec).spec, old, verdict, POOLS, generation=1, now=NOW)
        where = find(s.conditions, "Runnable")
        assert where is not None
        return where.status, where.reason, s.pools

    missing = Verdict("False", Reason.SOURCE_MISSING, "create it")
    assert told(InferletStatus(), missing) == ("False", Reason.INFERLET_NOT_READY, [])
    assert told(InferletStatus(), missing, pool="b") == (
        "False",
        Reason.POOL_NOT_READY,
        [],
    )
    assert told(InferletStatus(), Verdict("True", Reason.CATALOGUED, digest="d1")) == ("True", Reason.POOL_READY, ["a"])
    stays = Verdict("False", "InvalidSource", "line 3", digest="d1")
    assert told(InferletStatus(digest="sha256:d1"), stays) == ("False", Reason.INFERLET_NOT_READY, [])
    want, _ = runnable(inferlet().spec, POOLS, stays)
    assert "clients that launch it by name get its last valid version" in want.message


def test_an_invalid_source_is_refused_once_and_the_valid_version_stays() -> None:
    good = status(
        inferlet().spec, InferletStatus(), Verdict("True", "Catalogued", digest="d1"), POOLS, generation=1, now=NOW
    )
    bad = status(
        inferlet().spec, good, Verdict("False", "InvalidSource", "line 3", digest="d1"), POOLS, generation=2, now=NOW
    )
    assert events(InferletStatus(), good) == []
    assert [h.reason for h in events(bad, good)] == [EventReason.INFERLET_READY]
    assert [h.reason for h in events(good, bad)] == [EventReason.INFERLET_REFUSED]
    again = status(
        inferlet().spec, bad, Verdict("False", "InvalidSource", "line 3", digest="d1"), POOLS, generation=2, now=NOW
    )
    assert again == bad
    assert events(bad, again) == []
    assert bad.digest == "sha256:d1"


def test_an_entry_carries_what_the_spec_says() -> None:
    limits = {"memory": "2Mi", "cpuSliceSeconds": 3, "pages": 4, "commandsInFlight": 5}
    made = entry(inferlet(limits=limits, description="what", durability="off").spec, "ns", "i", b"x", "m", "ns/*")
    assert (made.pool, made.durability) == ("ns/*", "off")
    assert (made.tenant, made.name, made.model, made.description) == ("ns", "i", "m", "what")
    assert (made.limits.memory_bytes, made.limits.cpu_slice_s) == (2 << 20, 3.0)
    assert (made.limits.pages, made.limits.commands_in_flight) == (4, 5)
    assert made.source.filename == "i.py"


@given(st.binary(min_size=1, max_size=20), st.binary(min_size=1, max_size=20), st.text(max_size=5))
def test_fingerprints_tell_entries_apart_with_or_without_their_data(a: bytes, b: bytes, text: str) -> None:
    spec = inferlet(description=text).spec
    one, two = (entry(spec, "ns", "i", data, "m", "") for data in (a, b))
    assert (fingerprint(one) == fingerprint(two)) == (a == b)
    listed = entry(spec, "ns", "i", a, "m", "")
    listed.source.data = b""
    assert fingerprint(listed) == fingerprint(one)
    assert fingerprint(entry(spec, "ns", "i", a, "other", "")) != fingerprint(one)


NAMES = st.dictionaries(st.sampled_from("abcd"), st.sampled_from("12"))


@given(NAMES, NAMES)
def test_a_sync_leaves_exactly_the_wanted_entries(wanted: dict[str, str], held: dict[str, str]) -> None:
    todo = sync(wanted, held)
    after = {k: v for k, v in held.items() if k not in todo.delete} | {k: wanted[k] for k in todo.put}
    assert after == wanted
    assert not [k for k in todo.put if held.get(k) == wanted[k]], "nothing is put twice"
