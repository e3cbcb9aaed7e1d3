"""Entries of control's catalogue: what it should hold, compared with what it holds. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from tartlet_common.capabilities import SHARED
from tartlet_operator.api.common import quantity
from tartlet_operator.api.inferlet import Capabilities, InferletSpec
from tartlet_protos import common_pb2, control_pb2

_SUFFIX = {"Python": ".py", "Wasm": ".wasm"}
_LANGUAGE = {"Python": common_pb2.Source.PYTHON, "Wasm": common_pb2.Source.WASM}


def entry(
    spec: InferletSpec, namespace: str, name: str, data: bytes, model: str, pool: str, digest: str = ""
) -> control_pb2.CatalogueEntry:
    """Return the catalogue's entry for an Inferlet; the namespace is the tenant.

    Without a `digest` the entry gets the digest of `data`.
    """
    limits = spec.limits
    return control_pb2.CatalogueEntry(
        tenant=namespace,
        name=name,
        source=common_pb2.Source(
            language=_LANGUAGE[spec.language],
            filename=name + _SUFFIX[spec.language],
            data=data,
            digest=digest or hashlib.sha256(data).hexdigest(),
        ),
        limits=common_pb2.Limits(
            memory_bytes=int(quantity(limits.memory)) if limits.memory else 0,
            cpu_slice_s=float(limits.cpu_slice_seconds or 0),
            pages=limits.pages or 0,
            commands_in_flight=limits.commands_in_flight or 0,
        ),
        model=model,
        pool=pool,
        description=spec.description,
        durability=spec.durability or "",
        capabilities=_capabilities(spec.capabilities),
    )


def _capabilities(given: Capabilities) -> common_pb2.Capabilities:
    shared = {
        what: common_pb2.Patterns(patterns=patterns)
        for what in SHARED
        if (patterns := getattr(given, what)) is not None
    }
    return common_pb2.Capabilities(http=given.http, secrets=given.secrets, **shared)


def fingerprint(wanted: control_pb2.CatalogueEntry) -> str:
    """Return a text that is equal for equal entries, whether they hold the source's data or only its digest."""
    bare = control_pb2.CatalogueEntry()
    bare.CopyFrom(wanted)
    bare.source.data = b""
    return hashlib.sha256(bare.SerializeToString(deterministic=True)).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Sync:
    """Names of entries to put and to delete, so that the catalogue holds what it should."""

    put: list[str] = field(default_factory=list)
    delete: list[str] = field(default_factory=list)


def sync(wanted: Mapping[str, str], held: Mapping[str, str]) -> Sync:
    """Compare two maps from name to fingerprint.

    `delete` holds candidates: an Inferlet created this moment may not be among the wanted yet.

    Example:
        >>> sync({"a": "1", "b": "2"}, {"b": "3", "c": "4"})
        Sync(put=['a', 'b'], delete=['c'])
    """
    return Sync(
        put=sorted(name for name, print_ in wanted.items() if held.get(name) != print_),
        delete=sorted(held.keys() - wanted.keys()),
    )
