"""The beginning of both kinds of streams: the peer's first frame, for which control waits a bounded time."""

from __future__ import annotations

import asyncio
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio

from tartlet_common.errors.registry import DeadlineExceeded, TartletError
from tartlet_common.rpc import aborts

HELLO_TIMEOUT_S: Final = 10.0

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


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


async def abort(context: Context, error: TartletError) -> None:
    """End a call with an error that our clients decode."""
    await aborts.abort(context, grpc.StatusCode.FAILED_PRECONDITION, error)
