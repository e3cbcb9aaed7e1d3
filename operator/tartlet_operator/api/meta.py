"""Keys, labels and owners of objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tartlet_operator.api.common import API_VERSION, GROUP

MANAGER: Final = "tartlet-operator"
"""Field manager of everything that the operator applies, and value of the managed-by label."""
POOL_LABEL: Final = f"{GROUP}/pool"
DRAIN_FINALIZER: Final = f"{GROUP}/drain"
"""Keeps a deleted pool that has programs until the cluster has been told to keep it while its pods go."""
MANAGED_BY: Final = "app.kubernetes.io/managed-by"


class Key(NamedTuple):
    """Names one object of a custom resource."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Meta:
    """The part of an object's metadata that the operator reads."""

    namespace: str
    name: str
    uid: str
    generation: int
    deleting: bool
    finalizers: tuple[str, ...] = ()

    @staticmethod
    def of(body: Mapping[str, Any]) -> Meta:
        """Read the metadata from an object's body."""
        meta = body["metadata"]
        return Meta(
            meta.get("namespace", ""),
            meta["name"],
            meta.get("uid", ""),
            int(meta.get("generation", 0)),
            "deletionTimestamp" in meta,
            tuple(meta.get("finalizers") or ()),
        )


def owner(kind: str, meta: Meta) -> dict[str, Any]:
    """Return the reference that makes the cluster remove a dependent with its owner."""
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "name": meta.name,
        "uid": meta.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def pool_selector(name: str) -> dict[str, str]:
    """Return the labels of a pool's pods that never change."""
    return {"app.kubernetes.io/name": "tartlet", "app.kubernetes.io/component": "worker", POOL_LABEL: name}


def pool_labels(name: str) -> dict[str, str]:
    """Return the labels of everything that is made for a pool."""
    return {**pool_selector(name), MANAGED_BY: MANAGER}
