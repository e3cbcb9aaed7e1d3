"""Follows the state of control: which engines there are, which programs run, and what one program calls."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

from tartlet._calls import translated
from tartlet.client import AsyncClient
from tartlet_common.rpc.error_proto import error_from_proto
from tartlet_protos import control_pb2, control_pb2_grpc, programs_pb2


@dataclass(frozen=True, slots=True)
class StateChange:
    """What has changed since the change before.

    Attributes:
        whole: Everything is here, so what was known is to be forgotten.
        engines: The engines that are new or have changed, as `control["engines"]` of `RuntimeState` has them.
        programs: The programs that are new or have changed, likewise.
        totals: Numbers over all programs: `programs`, `programs_left_out` (older ones, which aren't told), `leaks`.
        engines_gone: Ids of engines that left.
        programs_gone: Ids of programs that ended.
    """

    whole: bool
    engines: list[dict[str, Any]]
    programs: list[dict[str, Any]]
    totals: dict[str, int]
    engines_gone: list[str]
    programs_gone: list[str]


async def known_models(client: AsyncClient) -> list[dict[str, Any]]:
    """Return the models that a client may use, the default one first; none while control is away.

    Each has `name`, `ready`, `max_position` in tokens and the names of its `adapters`. The runtime answers by what
    control last told it, so a caller may ask often. A runtime of an older release asks control for its whole state.
    """
    request = programs_pb2.RuntimeStateRequest(models_only=True)
    with translated(client.address):
        reply = await client._programs().RuntimeState(request, metadata=client._metadata)  # noqa: SLF001 - as above
    models: list[dict[str, Any]] = json.loads(reply.control_state_json or "{}").get("models", [])
    return models


async def watch_state(client: AsyncClient, every_s: float = 0.25) -> AsyncIterator[StateChange]:
    """Yield the engines and programs that a client may see, then their changes, at most every `every_s` seconds.

    Raises:
        Unavailable: control is away; a new call begins with a whole change again.
        PermissionDenied: over TLS, the client is neither a gateway nor an operator.
    """
    stub = control_pb2_grpc.ControlStub(client._control())  # noqa: SLF001 - one part of the client in two files
    with translated(client.control_address):
        request = control_pb2.WatchStateRequest(every_s=every_s)
        async for change in stub.WatchState(request, metadata=client._metadata):  # noqa: SLF001
            told = json.loads(change.json)
            yield StateChange(
                change.whole,
                told["engines"],
                told["programs"],
                told["totals"],
                list(change.engines_gone),
                list(change.programs_gone),
            )


async def watch_program(
    client: AsyncClient, program_id: str, every_s: float = 0.25
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the calls of a program that engines answer from now on, at most every `every_s` seconds, until it ends.

    The first value is `{"trace_id": hex}`, "" if the program isn't traced. The others are `{"calls": [...],
    "left_out": number of calls that came too fast}`. A call has `queue`, `call`, `tokens`, `engine`, `step`, the number
    of `commands` in that step, and `arrived_s`, `sent_s` and `answered_s`, in seconds from the program's start.

    Raises:
        UnknownProgram: no such program runs, or the client may not see it.
        Unavailable: control is away.
        PermissionDenied: over TLS, the client is neither a gateway nor an operator.
    """
    stub = control_pb2_grpc.ControlStub(client._control())  # noqa: SLF001 - one part of the client in two files
    with translated(client.control_address):
        request = control_pb2.WatchProgramRequest(program_id=program_id, every_s=every_s)
        async for told in stub.WatchProgram(request, metadata=client._metadata):  # noqa: SLF001
            if (error := error_from_proto(told.error)) is not None:
                raise error
            yield json.loads(told.json)
