"""Which pools of a release's values to create, to change and to delete. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tartlet_operator.api.common import API_VERSION, GROUP
from tartlet_operator.api.engine_pool import EnginePool

POOLS_FILE: Final = "pools.json"
"""Key of the release's ConfigMap under which the chart puts the pools of its values."""
MADE_AS: Final = f"{GROUP}/made-as"
"""Annotation of a pool with the part of the values that it was made from, as JSON.

The next values are compared with it, so that a field that they leave alone keeps what somebody else has written.
"""
REFUSED: Final = f"{GROUP}/refused"
"""Annotation of the release's ConfigMap: why pools of the values couldn't be made, by name, as JSON."""
_TAKEN: Final = "there is an EnginePool {} that enginePools of the values didn't make: give one of them another name"


@dataclass(frozen=True, slots=True)
class Create:
    """A pool that is missing."""

    name: str
    manifest: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """A pool whose values have changed, and a merge patch (RFC 7386) with the difference."""

    name: str
    uid: str
    patch: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Remove:
    """A pool that the values no longer name."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """A pool that can't be made, and why."""

    name: str
    message: str


Step = Create | Change | Remove | Refuse


def plan(text: str, live: Sequence[Mapping[str, Any]], release: Mapping[str, Any]) -> list[Step]:
    """Return the steps from the pools that there are to those of the values.

    Args:
        text: the pools of the values, as JSON: a list of `{name, labels, annotations, spec}`.
        live: the pools in the release's namespace.
        release: metadata of the release's ConfigMap, which owns the pools of the values.
    """
    wanted = {each["name"]: _part(each) for each in json.loads(text)}
    there = {body["metadata"]["name"]: body for body in live}
    steps: list[Step] = []
    for name, part in wanted.items():
        body = there.get(name)
        if body is None:
            steps.append(Create(name, _manifest(name, part, release)))
        elif not is_of(body, release):
            steps.append(Refuse(name, _TAKEN.format(name)))
        elif not _deleting(body):  # one that goes is made again when it has gone
            steps += _changes(name, body, part, release)
    steps += [
        Remove(name, body["metadata"]["uid"])
        for name, body in there.items()
        if name not in wanted and is_of(body, release) and not _deleting(body)
    ]
    return steps


def is_of(body: Mapping[str, Any], release: Mapping[str, Any]) -> bool:
    """Whether a pool was made from the release's values."""
    if body["metadata"].get("namespace") != release.get("namespace"):
        return False
    return any(_is_owner(each, release) for each in body["metadata"].get("ownerReferences") or ())


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch (RFC 7386) from one object to another.

    Example:
        >>> merge_patch({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": 2, "d": 4}, "e": 5})
        {'a': None, 'b': {'d': 4}, 'e': 5}
    """
    return dict(_differences(old, new))


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in (*old, *(n for n in new if n not in old)):
        before, after = old.get(name), new.get(name)
        if before == after:
            continue
        inner = isinstance(before, Mapping) and isinstance(after, Mapping)
        yield name, merge_patch(before, after) if inner else after  # type: ignore[arg-type]


def _changes(
    name: str, body: Mapping[str, Any], part: Mapping[str, Any], release: Mapping[str, Any]
) -> Iterable[Change]:
    meta = body["metadata"]
    before = json.loads((meta.get("annotations") or {}).get(MADE_AS) or "{}")
    patch = merge_patch(before, part)
    if patch:
        notes = patch.setdefault("metadata", {}).setdefault("annotations", {})
        notes[MADE_AS] = json.dumps(part)
    if not any(each["uid"] == release["uid"] for each in meta["ownerReferences"]):  # of an earlier ConfigMap
        patch.setdefault("metadata", {})["ownerReferences"] = [_owner(release)]
    return [Change(name, meta["uid"], patch)] if patch else []


def _part(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a pool that the values decide."""
    metadata = {"labels": given.get("labels") or {}, "annotations": given.get("annotations") or {}}
    return {"metadata": metadata, "spec": given.get("spec") or {}}


def _manifest(name: str, part: Mapping[str, Any], release: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {
        **part["metadata"],
        "name": name,
        "namespace": release["namespace"],
        "ownerReferences": [_owner(release)],
        "annotations": {**part["metadata"]["annotations"], MADE_AS: json.dumps(part)},
    }
    return {"apiVersion": API_VERSION, "kind": EnginePool.__name__, "metadata": metadata, "spec": part["spec"]}


def _owner(release: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reference by which the cluster removes a pool with its release."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": release["name"], "uid": release["uid"]}


def _is_owner(reference: Mapping[str, Any], release: Mapping[str, Any]) -> bool:
    return (reference["kind"], reference["name"]) == ("ConfigMap", release["name"])


def _deleting(body: Mapping[str, Any]) -> bool:
    return "deletionTimestamp" in body["metadata"]
