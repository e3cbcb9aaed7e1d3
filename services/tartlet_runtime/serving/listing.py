"""Programs as `List` tells of them, a page at a time.

A page's token says, for each runtime that has more, how far it was read: the last program's place in the order of
launches. So programs that start or end between two pages are told once or not at all, and no others twice.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from tartlet_common.errors.registry import InvalidArgument, TartletError
from tartlet_common.rpc.error_proto import error_to_proto
from tartlet_common.rpc.tenancy import Scope
from tartlet_protos import common_pb2, control_pb2, programs_pb2
from tartlet_runtime.program.program import Program
from tartlet_runtime.program.spec import State

Place: TypeAlias = "tuple[float, str]"
"""Where a program stands: when it was launched, by the clock of its runtime, and its id."""
START: Final[Place] = (0.0, "")
_TEXT_CHARS: Final = 2000
"""What a listing tells of a long text in an error: its end, which of a traceback says what was raised."""


def read_token(token: str) -> dict[str, Place] | None:
    """Read how far the runtimes that have more were read, by address. Returns None at the first page.

    Raises:
        InvalidArgument: no page was answered with this token.

    Example:
        >>> read_token(make_token({"host:1": (1.5, "id")}))
        {'host:1': (1.5, 'id')}
    """
    if not token:
        return None
    try:
        places = json.loads(base64.b64decode(token, validate=True))
        return {str(address): (float(s), str(i)) for address, (s, i) in places.items()}
    except (binascii.Error, ValueError, TypeError, AttributeError) as e:
        raise InvalidArgument(argument="page_token", detail="it is none that a listing gave") from e


def make_token(places: Mapping[str, Place]) -> str:
    """Return the token of the page after this one; "" if there is none."""
    return base64.b64encode(json.dumps(places).encode()).decode() if places else ""


def page_of(
    programs: Iterable[Program], after: Place, room: int, tell: Callable[[Program], programs_pb2.ProgramInfo]
) -> tuple[list[programs_pb2.ProgramInfo], Place | None]:
    """About `room` bytes of the programs behind `after`, but at least one; and where to go on, if there are more."""
    infos: list[programs_pb2.ProgramInfo] = []
    last = after
    for place, program in sorted((p, program) for program in programs if (p := place_of(program)) > after):
        info = tell(program)
        room -= info.ByteSize() + 8
        if room < 0 and infos:
            return infos, last
        infos.append(info)
        last = place
    return infos, None


def place_of(program: Program) -> Place:
    """Return where a program stands in its runtime's listing."""
    return program.usage.launched_s, program.program_id


def info_of(program: Program, now_s: float, unix_s: float, runtime: str) -> programs_pb2.ProgramInfo:
    """Describe a program, without its pages, which control knows.

    Args:
        program: the program.
        now_s: the clock's time.
        unix_s: the same moment, seconds since the epoch.
        runtime: this runtime's address.
    """
    age_s = now_s - program.usage.launched_s
    return programs_pb2.ProgramInfo(
        program_id=program.program_id,
        name=program.spec.name,
        state=state_name(program),
        tenant=program.spec.tenant,
        started_unix_s=unix_s - age_s,
        age_s=age_s,
        usage=program.usage.to_proto(now_s),
        error=error_to_proto(_brief(program.error)),
        model=program.model,
        runtime=runtime,
        idempotency_key=program.spec.idempotency_key,
        recovered_s=program.pauses.total_s,
        pauses=[common_pb2.Pause(cause=p.cause, seconds=p.seconds) for p in program.pauses.last],
        parent=program.spec.parent,
    )


def orphans_in(
    located: control_pb2.LocateReply, request: programs_pb2.ListRequest, scope: Scope, unix_s: float
) -> list[programs_pb2.ProgramInfo]:
    """Describe the programs that no runtime has just now, as far as a listing shows them."""
    return [
        programs_pb2.ProgramInfo(
            program_id=orphan.program_id,
            name=orphan.name,
            state="recovering",
            tenant=orphan.tenant,
            started_unix_s=unix_s - orphan.age_s,
            age_s=orphan.age_s,
            model=orphan.model,
            pages=orphan.pages,
            idempotency_key=orphan.idempotency_key,
            recovered_s=orphan.recovered_s,
        )
        for orphan in located.orphans
        if scope.shows(orphan.tenant, request.tenant)
    ]


def state_name(program: Program) -> str:
    """Return the state as `ProgramInfo.state` has it."""
    if program.state is State.ENDED:
        return "failed" if program.error else "succeeded"
    if program.stands_still:
        return "recovering"
    return "starting" if program.state is State.STARTING else "running"


def _brief(error: TartletError | None) -> TartletError | None:
    """Return the error with the ends of its long texts, because a traceback may be as large as many programs."""
    if error is None or all(len(v) <= _TEXT_CHARS for v in error.fields.values() if isinstance(v, str)):
        return error
    return type(error)(**{k: v[-_TEXT_CHARS:] if isinstance(v, str) else v for k, v in error.fields.items()})
