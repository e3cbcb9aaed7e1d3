"""A call of the client from a command: one event loop, typed errors to standard error, the right exit code."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from tartlet_cli import exits
from tartlet_cli.options import address

if TYPE_CHECKING:
    from tartlet.client import AsyncClient

T = TypeVar("T")


def with_client(server: str | None, work: Callable[[AsyncClient], Awaitable[T]]) -> T:
    """What `work` returns; a `TartletError` is shown and ends the command, as Ctrl-C does.

    Raises:
        SystemExit: after an error or Ctrl-C.
    """
    from tartlet_common import telemetry
    from tartlet_common.errors import TartletError

    async def call() -> T:
        from tartlet.client import AsyncClient

        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)
        async with AsyncClient(address(server)) as client:
            return await work(client)

    telemetry.setup("client")
    try:
        return asyncio.run(call())
    except TartletError as e:
        raise exits.fail(e) from e
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise SystemExit(exits.INTERRUPTED) from None
    finally:
        with contextlib.suppress(OSError):
            telemetry.shutdown()
