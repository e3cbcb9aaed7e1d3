"""Converts between the client's values and protobuf messages."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator

from tartlet._given import seed_bytes
from tartlet.events import Accepted, Ended, Event, Message, Stderr, Stdout, Usage
from tartlet.model import (
    Capabilities,
    CatalogueEntry,
    Fork,
    Language,
    LaunchSpec,
    Limits,
    ProgramInfo,
    RuntimeState,
    Source,
)
from tartlet_common.capabilities import SHARED
from tartlet_common.errors.registry import InternalError, InvalidArgument
from tartlet_common.pauses import Pause
from tartlet_common.rpc import error_proto
from tartlet_common.telemetry import telemetry
from tartlet_protos import common_pb2, control_pb2, programs_pb2

_LANGUAGES = {
    Language.PYTHON: common_pb2.Source.PYTHON,
    Language.WASM: common_pb2.Source.WASM,
    Language.NATIVE: common_pb2.Source.NATIVE,
}
_FROM_LANGUAGE = {number: language for language, number in _LANGUAGES.items()}

_NO_LIMITS = Limits()
_MOST: dict[str, float] = {  # the largest value that the message's field of each limit holds
    "memory_bytes": (1 << 64) - 1,
    "cpu_slice_s": sys.float_info.max,
    "pages": (1 << 32) - 1,
    "commands_in_flight": (1 << 32) - 1,
    "source_bytes": (1 << 64) - 1,
    "output_bytes": (1 << 64) - 1,
    "journal_bytes": (1 << 64) - 1,
    "deadline_s": sys.float_info.max,
}

Kind = programs_pb2.ProgramEvent
UPLOAD_ABOVE_BYTES = 1 << 20
"""Larger sources are uploaded once, in chunks; launches then name them by their digest."""


def source_to_proto(source: Source) -> common_pb2.Source:
    """Convert a source with its data; the server checks and caches it by the digest."""
    return common_pb2.Source(
        language=_LANGUAGES[source.language], filename=source.filename, data=source.data, digest=source.digest
    )


def source_or_digest(source: Source) -> common_pb2.Source:
    """Convert a source; large data is left out, because it was uploaded before."""
    message = source_to_proto(source)
    if len(message.data) > UPLOAD_ABOVE_BYTES:
        message.data = b""
    return message


def source_from_proto(m: common_pb2.Source) -> Source:
    """Convert a message to a source; `data` is empty if only the digest was sent."""
    return Source(m.data, _FROM_LANGUAGE.get(m.language, Language.PYTHON), m.filename)


def limits_to_proto(limits: Limits) -> common_pb2.Limits:
    """Convert limits field by field.

    Raises:
        InvalidArgument: a limit isn't a finite number of at least 0, or is too large for its field.
    """
    message = common_pb2.Limits()
    for name, most in _MOST.items():
        value = getattr(limits, name)
        if value:
            if not 0 < value <= most:
                raise InvalidArgument(argument=f"limits.{name}", detail=f"{value} is not within 0 to {most}")
            setattr(message, name, value)
    return message


def limits_from_proto(m: common_pb2.Limits) -> Limits:
    """Convert limits field by field."""
    return Limits(
        memory_bytes=m.memory_bytes,
        cpu_slice_s=m.cpu_slice_s,
        pages=m.pages,
        commands_in_flight=m.commands_in_flight,
        source_bytes=m.source_bytes,
        output_bytes=m.output_bytes,
        journal_bytes=m.journal_bytes,
        deadline_s=m.deadline_s,
    )


def launch_to_proto(spec: LaunchSpec, *, attach: bool, tie: bool, client: bytes = b"") -> programs_pb2.LaunchSpec:
    """Convert a launch, with the current trace context: the program's span becomes a child of the caller's.

    Raises:
        InvalidArgument: the launch names no program, or a limit is invalid.
    """
    if spec.source is None and not spec.inferlet and spec.fork is None:
        raise InvalidArgument(argument="source", detail="there is none, and no inferlet", remedy="Give exactly one.")
    return programs_pb2.LaunchSpec(
        source=source_or_digest(spec.source) if spec.source is not None else None,
        inferlet=spec.inferlet,
        args=spec.args,
        model=spec.model,
        pool=spec.pool,
        limits=limits_to_proto(spec.limits) if spec.limits != _NO_LIMITS else None,
        tenant=spec.tenant,
        idempotency_key=spec.idempotency_key,
        attach=attach,
        tie=tie,
        client=client,
        durable=spec.durable and spec.durability != "off",
        durability=spec.durability,
        capabilities=capabilities_to_proto(spec.capabilities),
        seed=seed_bytes(spec.seed),
        session=_session(spec) if spec.session else None,
        trace=telemetry.inject(),
        fork=None if spec.fork is None else _fork_to_proto(spec.fork),
    )


def capabilities_to_proto(given: Capabilities | None) -> common_pb2.Capabilities | None:
    """Convert capabilities; None stands for none that are given."""
    if given is None:
        return None
    shared = {
        what: common_pb2.Patterns(patterns=patterns)
        for what in SHARED
        if (patterns := getattr(given, what)) is not None
    }
    return common_pb2.Capabilities(http=given.http, secrets=given.secrets, **shared)


def _capabilities_from_proto(m: common_pb2.Capabilities) -> Capabilities:
    shared = {what: tuple(getattr(m, what).patterns) for what in SHARED if m.HasField(what)}  # type: ignore[arg-type]
    return Capabilities(http=tuple(m.http), secrets=tuple(m.secrets), **shared)


def _session(spec: LaunchSpec) -> common_pb2.Session:
    return common_pb2.Session(id=spec.session, parent=spec.parent_session, ends=spec.ends_session)


def _fork_to_proto(fork: Fork) -> programs_pb2.Fork:
    digest = hashlib.sha256(fork.journal).hexdigest() if fork.journal else ""
    return programs_pb2.Fork(program_id=fork.program_id, journal=digest, deliveries=fork.deliveries)


def launches_to_proto(specs: Iterable[LaunchSpec], *, attach: bool, tie: bool) -> Iterator[programs_pb2.LaunchSpec]:
    """Convert launches as `launch_to_proto` does; a spec that is repeated is converted once."""
    last: LaunchSpec | None = None
    for spec in specs:
        if spec is not last:
            last, message = spec, launch_to_proto(spec, attach=attach, tie=tie)
        yield message


def usage_from_proto(m: programs_pb2.Usage) -> Usage:
    """Convert usage field by field."""
    return Usage(
        sampled_tokens=m.sampled_tokens,
        input_tokens=m.input_tokens,
        first_token_s=m.first_token_s,
        per_token_s=m.per_token_s,
        wall_s=m.wall_s,
        commands=m.commands,
        peak_pages=m.peak_pages,
        distributions=m.distributions,
    )


def event_from_proto(m: programs_pb2.ProgramEvent) -> Event:
    """Return the event that a message carries.

    Raises:
        TartletError: the launch was rejected; this is the reason.
    """
    match m.kind:
        case Kind.ACCEPTED:
            return Accepted(m.program_id, m.data.decode())
        case Kind.MESSAGE:
            return Message(m.program_id, m.offset, m.data)
        case Kind.STDOUT:
            return Stdout(m.program_id, m.offset, m.data)
        case Kind.STDERR:
            return Stderr(m.program_id, m.offset, m.data)
        case Kind.ENDED:
            result = m.data.decode(errors="replace") if m.data else None
            error = error_proto.error_from_proto(m.error)
            return Ended(m.program_id, m.offset, m.success, result, error, usage_from_proto(m.usage))
        case Kind.REJECTED:
            raise error_proto.error_from_proto(m.error) or InternalError(detail="rejected without a reason")
        case _:
            raise InternalError(detail=f"unknown event {m.kind}")


def info_from_proto(m: programs_pb2.ProgramInfo) -> ProgramInfo:
    """Convert one program of a listing."""
    return ProgramInfo(
        program_id=m.program_id,
        name=m.name,
        state=m.state,
        tenant=m.tenant,
        started_unix_s=m.started_unix_s,
        age_s=m.age_s,
        usage=usage_from_proto(m.usage),
        error=error_proto.error_from_proto(m.error),
        model=m.model,
        pages=m.pages,
        runtime=m.runtime,
        idempotency_key=m.idempotency_key,
        recovered_s=m.recovered_s,
        pauses=tuple(Pause(p.cause, p.seconds) for p in m.pauses),
        parent=m.parent,
    )


def entry_to_proto(entry: CatalogueEntry) -> control_pb2.CatalogueEntry:
    """Convert a catalogue entry with its source."""
    return control_pb2.CatalogueEntry(
        tenant=entry.tenant,
        name=entry.name,
        source=source_or_digest(entry.source),
        limits=limits_to_proto(entry.limits),
        model=entry.model,
        description=entry.description,
        pool=entry.pool,
        durability=entry.durability,
        capabilities=capabilities_to_proto(entry.capabilities),
    )


def entry_from_proto(m: control_pb2.CatalogueEntry) -> CatalogueEntry:
    """Convert a catalogue entry; in listings its source has no data."""
    return CatalogueEntry(
        name=m.name,
        source=source_from_proto(m.source),
        tenant=m.tenant,
        limits=limits_from_proto(m.limits),
        model=m.model,
        description=m.description,
        pool=m.pool,
        durability=m.durability,
        capabilities=_capabilities_from_proto(m.capabilities),
    )


def state_from_proto(m: programs_pb2.RuntimeStateReply) -> RuntimeState:
    """Convert a runtime's state."""
    return RuntimeState(
        version=m.version,
        incarnation=m.incarnation,
        running=m.running,
        capacity=m.capacity,
        control_connected=m.control_connected,
        control=json.loads(m.control_state_json) if m.control_state_json else {},
        component=m.component,
        boundary=m.boundary,
        spares=m.spares,
        memory_bytes=m.memory_bytes,
        memory_source=m.memory_source,
        memory_taken_bytes=dict(m.memory_taken_bytes),
    )
