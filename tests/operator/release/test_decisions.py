"""Which pools of a release's values are made, changed and deleted."""

from __future__ import annotations

import json
from typing import Any

from tartlet_operator.release.decisions import MADE_AS, Change, Create, Refuse, Remove, Step, plan

RELEASE = {"namespace": "ns", "name": "r-pools", "uid": "u1"}
SPEC = {"model": {"name": "m"}, "replicas": 1, "engine": {"backend": "Fake", "dtype": "bf16"}}


def given(name: str = "a", **spec: Any) -> dict[str, Any]:
    return {"name": name, "labels": {"team": "x"}, "annotations": {}, "spec": {**SPEC, **spec}}


def planned(values: list[dict[str, Any]], *live: dict[str, Any]) -> list[Step]:
    return plan(json.dumps(values), live, RELEASE)


def made(values: dict[str, Any], **meta: Any) -> dict[str, Any]:
    """Return a pool as it is after its creation."""
    (create,) = planned([values])
    assert isinstance(create, Create)
    return {**create.manifest, "metadata": {**create.manifest["metadata"], "uid": f"of-{values['name']}", **meta}}


def test_a_missing_pool_is_created_and_belongs_to_the_release() -> None:
    (create,) = planned([given()])
    assert isinstance(create, Create)
    meta = create.manifest["metadata"]
    assert (create.manifest["spec"], meta["labels"]) == (SPEC, {"team": "x"})
    assert meta["ownerReferences"] == [{"apiVersion": "v1", "kind": "ConfigMap", "name": "r-pools", "uid": "u1"}]


def test_a_field_that_the_values_leave_alone_keeps_what_somebody_wrote() -> None:
    scaled = made(given())
    scaled["spec"] = {**scaled["spec"], "replicas": 5}
    assert planned([given()], scaled) == []
    changed = given(engine={"backend": "Fake", "pageSize": 32})
    (change,) = planned([changed], scaled)
    assert isinstance(change, Change)
    assert change.patch["spec"] == {"engine": {"dtype": None, "pageSize": 32}}
    (note,) = change.patch["metadata"]["annotations"].items()
    assert note[0] == MADE_AS
    assert json.loads(note[1])["spec"] == changed["spec"]


def test_only_pools_of_this_release_are_removed_and_changed() -> None:
    theirs = made(given("theirs"), ownerReferences=[])
    elsewhere = made(given("b"), namespace="other")
    assert planned([], made(given()), theirs, elsewhere) == [Remove("a", "of-a")]
    (refuse,) = planned([given("theirs")], theirs)
    assert isinstance(refuse, Refuse)
    assert "theirs" in refuse.message


def test_a_pool_that_goes_is_left_alone_until_it_has_gone() -> None:
    going = made(given(), deletionTimestamp="2026-01-01T00:00:00Z")
    assert planned([given(replicas=2)], going) == planned([], going) == []


def test_pools_of_an_earlier_configmap_get_the_new_one_as_owner() -> None:
    old = made(given())
    old["metadata"]["ownerReferences"] = [{**old["metadata"]["ownerReferences"][0], "uid": "u0"}]
    (change,) = planned([given()], old)
    assert isinstance(change, Change)
    assert change.patch["metadata"]["ownerReferences"][0]["uid"] == "u1"
    assert "spec" not in change.patch
