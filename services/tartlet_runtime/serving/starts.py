"""Starts of programs: what control is told of one, and how long control and native programs may keep one waiting."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tartlet_common.capabilities import Grant
from tartlet_common.errors.registry import ControlLost, TartletError, Unavailable
from tartlet_protos import common_pb2, control_pb2
from tartlet_runtime.guests.native import NativeGuest
from tartlet_runtime.program.program import Program
from tartlet_runtime.program.spec import ProgramSpec

START_TIMEOUT_S = 10.0
"""How long a launch waits for control before it is refused."""
NATIVE_CONNECT_S = 30.0
"""How long a native program's process may take to connect."""
CONTROL_GRACE_S = 30.0
"""How long programs that wait for control to come back are kept."""


def start_of(program: Program, *, running: bool = False, now_s: float = 0.0) -> control_pb2.ProgramStart:
    """Return what control is told of a program that starts, or that runs already, at `now_s` of the monotonic clock."""
    spec, recorder = program.spec, program.recorder
    durable = program.can_begin_again
    adopts = program.adopts and not running
    paused = program.pauses_at(now_s) if running else ()
    pauses = [common_pb2.Pause(cause=pause.cause, seconds=pause.seconds) for pause in paused]
    return control_pb2.ProgramStart(
        handle=program.handle,
        program_id=spec.program_id,
        name=spec.name,
        digest=spec.digest,
        tenant=spec.tenant,
        idempotency_key=spec.idempotency_key,
        model=program.model if running else spec.model,
        pool=spec.pool,
        session=_session_of(spec) if spec.session else None,
        command_limit=spec.limits.commands_in_flight,
        page_limit=spec.limits.pages,
        trace=spec.trace,
        running=running,
        durable=durable,
        epoch=recorder.journal.epoch if durable and recorder is not None else 0,
        run=spec.seed,
        parent=spec.parent,
        detached=spec.detached,
        grants=_packed(spec.grants),
        heard=recorder.heard if recorder is not None else 0,
        adopts=adopts,
        history=(running and bool(program.history)) or (adopts and program.is_whole),
        lost_state=running and bool(program.history),
        pauses=pauses,
    )


def _packed(grants: Sequence[Grant]) -> str:
    """Return the grants that limit what control checks, as JSON; "" if none does."""
    told = [grant.to_json() for grant in grants if grant.limits_sharing]
    return json.dumps(told) if told else ""


def _session_of(spec: ProgramSpec) -> common_pb2.Session:
    return common_pb2.Session(id=spec.session, parent=spec.parent_session, ends=spec.ends_session)


def overdue(program: Program, age_s: float, away_s: float) -> TartletError | None:
    """Return what ends a program that has waited too long, or None.

    Args:
        program: a live one.
        age_s: seconds since its launch.
        away_s: seconds since control was there; 0 while it is.
    """
    if program.awaits_control and not program.adopts and age_s > START_TIMEOUT_S:
        return Unavailable(what="control", detail=f"it did not answer for {START_TIMEOUT_S} s")
    if program.history and away_s > CONTROL_GRACE_S:
        return ControlLost(why=f"control has been away for {away_s:.0f} s")
    if program.unsent_commands and away_s > CONTROL_GRACE_S:
        return Unavailable(what="control", detail=f"it has been away for {away_s:.0f} s")
    guest = program.guest
    if isinstance(guest, NativeGuest) and guest.connection is None and age_s > NATIVE_CONNECT_S:
        return Unavailable(what="the native program", detail=f"it did not connect within {NATIVE_CONNECT_S} s")
    return None
