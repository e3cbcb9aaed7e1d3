"""The beginning of both kinds of streams: the peer's first frame, and whether its link continues.

Control waits a bounded time for that frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio

from tartlet_common.errors.registry import DeadlineExceeded, InvalidArgument, TartletError
from tartlet_common.rpc import aborts
from tartlet_common.rpc.resume import RESUMES_SINCE, ResumableLink
from tartlet_control.core.core import Core
from tartlet_control.tables.engines import EngineState
from tartlet_control.tables.programs import RuntimeSession

HELLO_TIMEOUT_S: Final = 10.0
MAX_ID_CHARS: Final = 253
"""Most characters of an id in a Hello, as of a DNS name: frames and lists carry ids many times."""

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


def check_id(field: str, text: str) -> None:
    """Refuse an id that frames can't carry in any number.

    Raises:
        InvalidArgument: the id is too long, or holds a character that can't be printed.
    """
    if len(text) > MAX_ID_CHARS or not text.isprintable():
        detail = f"{text[:64]!r} must be printable, of at most {MAX_ID_CHARS} characters"
        raise InvalidArgument(argument=field, detail=detail)


async def first_frame(context: Context, timeout_s: float) -> Any:
    """Return the stream's first frame, or EOF. If no frame comes in time, end the stream in DeadlineExceeded."""
    try:
        async with asyncio.timeout(timeout_s):
            frame = await context.read()
    except TimeoutError:
        await abort(context, DeadlineExceeded(deadline_s=timeout_s))
    # Sent now, because a call that is cut while it writes this and its first frame can't be given a status.
    await context.send_initial_metadata(())
    return frame


def begin_link(
    core: Core,
    peer: RuntimeSession | EngineState,
    version: int,
    empty: type[Any],
    replace: Callable[[Any, TartletError], Any] | None = None,
) -> None:
    """Give a peer that says Hello a new link; `empty` makes its frames. `replace` is as in `ResumableLink`."""
    if peer.link is not None:
        peer.link.give_up()
    peer.link = ResumableLink(core.clock.now, empty, resumes=version >= RESUMES_SINCE, replace=replace)


def answer(core: Core, reply: Any, version: int, grace_s: float, resumed: ResumableLink[Any] | None, peer: str) -> None:
    """Fill in the fields that control's answers to Hellos of both kinds have. `resumed`: the link that continues."""
    reply.protocol = version
    reply.incarnation = core.incarnation
    reply.epoch = core.epoch
    reply.grace_s = grace_s
    if resumed is not None:
        reply.resumed = True
        reply.applied = resumed.applied
        if core.on_resumed is not None:
            core.on_resumed(peer)


async def abort(context: Context, error: TartletError) -> None:
    """End a call with an error that our clients decode."""
    await aborts.abort(context, grpc.StatusCode.FAILED_PRECONDITION, error)
