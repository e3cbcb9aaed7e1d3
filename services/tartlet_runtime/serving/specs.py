"""What a launch asks for, checked: pure but for the identity and the seed that each program gets."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from tartlet_common.capabilities import ENTRY, LAUNCH, SHARED, Grant
from tartlet_common.durability import check_durability
from tartlet_common.engine.pools import Reach
from tartlet_common.errors.registry import InvalidArgument, InvalidSource, SourceTooLarge
from tartlet_protos import common_pb2, programs_pb2
from tartlet_runtime.abi.limits import MAX_ARGS_BYTES, MAX_NAME_BYTES, PYTHON_BYTES, ProgramLimits, resolve
from tartlet_runtime.program.spec import ProgramSpec
from tartlet_runtime.wasm.compiling.aot import is_component

Durability: TypeAlias = Callable[[str, Reach], str]
"""Tells the durability of a launch that says nothing: "on", "degrade" or "off", by its model and its reach."""
_Source = common_pb2.Source
_SEED_BYTES = 16
_TRACE_KEYS = ("traceparent", "tracestate", "baggage")
"""W3C trace context: what else a client sends, or more than it allows, goes no further."""


def specify(
    asked: programs_pb2.LaunchSpec,
    source: common_pb2.Source,
    defaults: ProgramLimits,
    durability: Durability = lambda *_: "on",
    entry: common_pb2.Capabilities | None = None,
) -> ProgramSpec:
    """Check a launch and fill in what it leaves open.

    Args:
        asked: the launch, with the defaults of its entry in the catalogue.
        source: holds the program's bytes.
        defaults: the runtime's limits.
        durability: of launches that don't say, whose entries don't say either. Asked once names are found short enough.
        entry: what the program's entry in the catalogue lets it reach; None: it has none.

    Raises:
        InvalidArgument, SourceTooLarge, InvalidSource: as they say.
    """
    limits = resolve(asked.limits, defaults) if asked.HasField("limits") else defaults
    data = source.data
    if source.language == _Source.WASM and is_component(data):  # nobody can tell how large its memories are
        limits = replace(limits, reserved_bytes=limits.memory_bytes)
    if len(data) > limits.source_bytes:
        raise SourceTooLarge(size=len(data), limit=limits.source_bytes)
    if source.language == _Source.PYTHON and limits.memory_bytes < PYTHON_BYTES:
        given = f"{limits.memory_bytes / (1 << 20):g} MiB (--max-memory)"
        detail = f"{given}; a Python program needs at least {PYTHON_BYTES >> 20} MiB to start"
        raise InvalidArgument(argument="limits.memory_bytes", detail=detail)
    if source.language not in (_Source.PYTHON, _Source.WASM, _Source.NATIVE):
        raise InvalidArgument(argument="source.language", detail=f"{source.language} is unknown")
    digest = hashlib.sha256(data).hexdigest()
    if source.digest and source.digest != digest:
        raise InvalidSource(detail=f"its digest is {digest}, not {source.digest}")
    if sum(len(arg.encode()) for arg in asked.args) > MAX_ARGS_BYTES:
        raise InvalidArgument(argument="args", detail=f"more than {MAX_ARGS_BYTES} bytes")
    for field in ("tenant", "idempotency_key", "model", "pool", "inferlet"):
        if len(getattr(asked, field).encode()) > MAX_NAME_BYTES:
            raise InvalidArgument(argument=field, detail=f"longer than {MAX_NAME_BYTES} bytes")
    for field, text in (("session", asked.session.id), ("parent_session", asked.session.parent)):
        if len(text.encode()) > MAX_NAME_BYTES:
            raise InvalidArgument(argument=field, detail=f"longer than {MAX_NAME_BYTES} bytes")
    if len(asked.seed) not in (0, _SEED_BYTES):
        raise InvalidArgument(argument="seed", detail=f"{len(asked.seed)} bytes; {_SEED_BYTES} are wanted")
    mode = _durability(asked, durability)
    filename = source.filename[:MAX_NAME_BYTES] or "main.py"
    return ProgramSpec(
        program_id=str(uuid.uuid4()),
        name=asked.inferlet or filename.rpartition("/")[2],
        language=source.language,
        filename=filename,
        source=data,
        digest=digest,
        args=tuple(asked.args),
        model=asked.model,
        pool=asked.pool,
        tenant=asked.tenant,
        idempotency_key=asked.idempotency_key,
        limits=limits,
        durable=mode != "off",
        degrades=mode == "degrade",
        seed=asked.seed or os.urandom(_SEED_BYTES),
        seeded=bool(asked.seed),
        tied=asked.tie,
        grants=_grants(asked, entry),
        session=asked.session.id,
        parent_session=asked.session.parent if asked.session.id else "",
        ends_session=asked.session.ends,
        trace={
            key: value for key in _TRACE_KEYS if 0 < len((value := asked.trace.get(key, "")).encode()) <= MAX_NAME_BYTES
        },
    )


def _grants(asked: programs_pb2.LaunchSpec, entry: common_pb2.Capabilities | None) -> tuple[Grant, ...]:
    """Return what a launch and its entry allow. A launch that says nothing gets what its entry allows.

    Raises:
        InvalidArgument: a pattern or a name is none.
    """
    launch = _grant(LAUNCH, asked.capabilities)
    if entry is None:
        return (launch,)
    whole = _grant(ENTRY, entry)
    return (whole, launch) if asked.HasField("capabilities") else (whole,)


def _grant(place: str, told: common_pb2.Capabilities) -> Grant:
    shared = {what: getattr(told, what).patterns for what in SHARED if told.HasField(what)}  # type: ignore[arg-type]
    return Grant.of(place, told.http, told.secrets, **shared)


def _durability(asked: programs_pb2.LaunchSpec, default: Durability) -> str:
    """Return the mode of a launch. Clients that know no modes say `durable` alone, and may only choose "off".

    A fork that says nothing keeps a journal whatever the default is, because it begins from one.

    Raises:
        InvalidArgument: the mode is unknown.
    """
    check_durability(asked.durability)
    if not asked.durable:
        return "off"
    if said := asked.durability or ("degrade" if asked.degrade else ""):
        return said
    mode = default(asked.model, Reach.of(asked.tenant, asked.pool))
    return "on" if mode == "off" and asked.HasField("fork") else mode
