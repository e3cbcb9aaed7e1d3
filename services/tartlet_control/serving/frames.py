"""Frames between runtimes and control, made of what the core has for a runtime, and read into what the core takes."""

from __future__ import annotations

import json
from typing import Final

from tartlet_common.capabilities import Grant
from tartlet_common.pauses import Pause
from tartlet_common.rpc.error_proto import error_from_proto, error_to_proto
from tartlet_common.rpc.tenancy import Scope
from tartlet_control.core.core import Core
from tartlet_control.core.lifecycle import Kept, StartRequest
from tartlet_control.core.runtimes.searches import Found
from tartlet_control.order.sessions import Belonging
from tartlet_control.serving.ends import BESIDE_BYTES, add_ends
from tartlet_control.serving.specs import model_info
from tartlet_control.tables.numbering import Numbering
from tartlet_control.tables.outbox import Chunk, Notices
from tartlet_protos import control_pb2

_STARTS_BYTES: Final = 2 << 20
_TAKEOVERS: Final = 1024  # of one frame
_ORPHANS: Final = 1024  # told to one caller


def frames_of(core: Core, chunks: list[Chunk], notices: Notices, numbers: Numbering) -> list[control_pb2.ControlFrame]:
    """Return what waits for a runtime in as few frames as fit."""
    idle = core.idle
    frames = []
    for chunk in chunks:
        frame = control_pb2.ControlFrame(idle=idle)
        columns = frame.deliveries  # filled in place: to make it first and then copy it takes thrice as long
        columns.handles, columns.records = bytes(chunk.handles), bytes(chunk.records)
        columns.payload = bytes(chunk.payload)
        frames.append(frame)
    if notices:
        # Starts go first: nothing may be delivered to a program before it has started.
        started = _starts(core, notices, numbers)
        if frames and len(started) == 1 and started[0].ByteSize() < BESIDE_BYTES:
            frames[0].MergeFrom(started.pop())
        frames = started + frames
        if not frames:
            frames.append(control_pb2.ControlFrame())
        frames += add_ends(frames[-1], notices)
    return frames


def _starts(core: Core, notices: Notices, numbers: Numbering) -> list[control_pb2.ControlFrame]:
    """Return models and starts in as few frames as fit."""
    frames = []
    if notices.models_changed:
        infos = (model_info(m, numbers, core.orders.durabilities) for m in core.models)
        models = [info for info in infos if info is not None]
        frames.append(control_pb2.ControlFrame(models_changed=True, models=models))
    replies = [
        control_pb2.StartReply(handle=h, error=error_to_proto(e), existing_program_id=existing)
        for h, e, existing in notices.started
    ] + [control_pb2.StartReply(handle=a.handle, commands=a.commands, paused_s=a.paused_s) for a in notices.adopted]
    size = frames[0].ByteSize() if frames else _STARTS_BYTES
    for reply in replies:
        size += reply.ByteSize() + 8
        if size > _STARTS_BYTES:
            frames.append(control_pb2.ControlFrame())
            size = 0
        frames[-1].started.append(reply)
    for start in range(0, len(notices.takeovers), _TAKEOVERS):
        some = notices.takeovers[start : start + _TAKEOVERS]
        takeovers = [control_pb2.TakeOver(program_id=i, epoch=epoch, whole=whole) for i, epoch, whole in some]
        frames.append(control_pb2.ControlFrame(takeovers=takeovers))
    if notices.find_journals:
        frames.append(control_pb2.ControlFrame(find_journals=True))
    return frames


def orphans_of(core: Core, scope: Scope) -> list[control_pb2.Orphan]:
    """Return the programs without a runtime that a caller may see."""
    now = core.clock.now()
    found = [orphan.found for orphan in core.takeovers.orphans.values() if orphan.found is not None]
    waiting = [(orphan, core.lifecycle.programs.get(i)) for i, orphan in core.takeovers.orphans.items()]
    return [
        control_pb2.Orphan(
            program_id=program.id,
            name=program.name,
            tenant=program.tenant,
            model=program.default_model.name if program.default_model is not None else program.asked_model,
            idempotency_key=program.idempotency_key,
            age_s=now - program.started_s,
            pages=program.num_pages,
            recovered_s=program.pauses.total_s + now - orphan.since_s,
        )
        for orphan, program in waiting[:_ORPHANS]
        if program is not None and scope.allows(program.tenant)
    ] + [
        control_pb2.Orphan(
            program_id=f.program_id, name=f.name, tenant=f.tenant, model=f.model, idempotency_key=f.idempotency_key
        )
        for f in found[:_ORPHANS]
        if f.program_id not in core.lifecycle.programs and scope.allows(f.tenant)
    ]


def start_request(start: control_pb2.ProgramStart) -> StartRequest:
    """Read what a runtime says of a program that it starts, announces or adopts."""
    return StartRequest(
        handle=start.handle,
        program_id=start.program_id,
        tenant=start.tenant,
        idempotency_key=start.idempotency_key,
        model=start.model,
        pool=start.pool,
        page_limit=start.page_limit,
        command_limit=start.command_limit,
        name=start.name,
        digest=start.digest,
        trace=tuple(start.trace.items()),
        lost_state=start.lost_state,
        history=start.history,
        running=start.running,
        durable=start.durable,
        epoch=start.epoch,
        run=start.run,
        parent=start.parent,
        detached=start.detached,
        grants=tuple(map(Grant.from_json, json.loads(start.grants))) if start.grants else (),
        heard=start.heard,
        adopts=start.adopts,
        lost=error_from_proto(start.lost),
        pauses=tuple(Pause(pause.cause, pause.seconds) for pause in start.pauses),
        belonging=Belonging(start.session.id, start.session.parent, start.session.ends),
    )


def found(journal: control_pb2.FoundJournal) -> Found:
    """Read what a runtime says of a journal in its store."""
    return Found(
        journal.program_id,
        journal.epoch,
        journal.tenant,
        journal.idempotency_key,
        journal.model,
        journal.pool,
        journal.name,
    )


def kept(program: control_pb2.KeptProgram) -> Kept:
    """Read what a runtime says of an ended program whose output it keeps."""
    return Kept(program.program_id, program.tenant, program.idempotency_key)
