"""A call of the client from a command: one event loop, typed errors to standard error, the right exit code."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tartlet_cli.console import exits
from tartlet_cli.console.options import address

if TYPE_CHECKING:
    from tartlet.client import AsyncClient

T = TypeVar("T")


def connect(server: str | None) -> AsyncClient:
    """A client of the server that the command line names.

    Raises:
        click.UsageError: the address is none, or its TLS files aren't there.
        Unavailable: nothing is at the socket's path.
    """
    from tartlet import environment
    from tartlet.client import AsyncClient
    from tartlet_common.errors.registry import Unavailable
    from tartlet_common.rpc.endpoints import unix_path

    client = AsyncClient(address(server))
    path = unix_path(client.address)
    if path is None:
        host, _, port = client.address.rpartition(":")
        if not host or "/" in host or not port.isdigit():
            scheme = ", without a scheme" if "://" in client.address else ""
            told = f"{client.address}: give unix:/path, host:port or `local`{scheme}"
            raise click.BadParameter(told, param_hint="--server")
        if environment.identity() is None:
            raise click.UsageError(
                f"{client.address} is TCP: give --tls-certificate, --tls-key and --tls-authority as well"
            )
    elif not path.exists():
        raise Unavailable(what=f"the server at {client.address}", detail="there is no such socket")
    return client


_AFTER_INPUT_S = 1.0
_LINES_AHEAD = 1024  # read from standard input and not yet sent
_INBOX_S = 0.05  # until a full inbox is tried again


async def talk(client: AsyncClient, program_id: str, follow: Coroutine[Any, Any, int], *, quiet: bool) -> int:
    """What `follow` returns, while each line of standard input becomes a message to the program.

    Raises:
        TartletError: a line can't be sent, such as one that is too long; the program has not ended.
    """
    from tartlet_common.errors.registry import UnknownProgram

    following, talking = (
        asyncio.ensure_future(follow),
        asyncio.ensure_future(send_lines(client, program_id, quiet=quiet)),
    )
    try:
        await asyncio.wait((following, talking), return_when=asyncio.FIRST_COMPLETED)
        if not following.done():
            with contextlib.suppress(UnknownProgram):  # it has just ended
                talking.result()
        return await following
    finally:
        for task in (following, talking):
            task.cancel()
        await asyncio.gather(following, talking, return_exceptions=True)


async def send_lines(client: AsyncClient, program_id: str, *, quiet: bool = False) -> None:
    """Each line of standard input becomes a message to the program, until either ends.

    A program that has left too many unread is waited for. One that goes on a while after the input's end may be waiting
    for a line that can't come, so that is told.
    """
    from tartlet_common.errors.registry import InboxFull

    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[bytes | None] = asyncio.Queue()
    room = threading.Semaphore(_LINES_AHEAD)

    def read() -> None:  # in a thread: the loop can wait for pipes and terminals, not for files
        rest = b""
        with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody wants it any more
            while data := os.read(sys.stdin.fileno(), 1 << 16):
                *whole, rest = (rest + data).split(b"\n")
                for line in whole:
                    room.acquire()
                    loop.call_soon_threadsafe(lines.put_nowait, line)
            if rest:
                loop.call_soon_threadsafe(lines.put_nowait, rest)
            loop.call_soon_threadsafe(lines.put_nowait, None)

    threading.Thread(target=read, name="stdin", daemon=True).start()
    while (line := await lines.get()) is not None:
        room.release()
        while True:
            try:
                await client.send(program_id, line)
                break
            except InboxFull:
                await asyncio.sleep(_INBOX_S)
    if not quiet:
        await asyncio.sleep(_AFTER_INPUT_S)
        sys.stderr.write("end of input: the program goes on, and gets no more lines\n")
        sys.stderr.flush()


def on_signals(handler: Callable[[asyncio.Task[Any]], object]) -> None:
    """Have the running loop call `handler` with the current task on Ctrl-C and on what ends a process in order.

    Without, SIGTERM and SIGHUP end it on the spot, and whatever it has on disk, a client's private key too, stays.
    """
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, handler, task)


def with_client(server: str | None, work: Callable[[AsyncClient], Awaitable[T]]) -> T:
    """What `work` returns; a `TartletError` is shown and ends the command, as a signal does.

    Raises:
        SystemExit: after an error or a signal.
    """
    return with_opened(lambda: connect(server), work)


def with_opened(
    opening: Callable[[], AbstractAsyncContextManager[AsyncClient]], work: Callable[[AsyncClient], Awaitable[T]]
) -> T:
    """As `with_client`, with a client that `opening` gives."""
    from tartlet_common.errors.registry import TartletError
    from tartlet_common.telemetry import telemetry

    async def call() -> T:
        on_signals(asyncio.Task.cancel)
        async with opening() as client:
            return await work(client)

    try:
        telemetry.setup("client")
        return asyncio.run(call())
    except TartletError as e:
        raise exits.fail(e) from e
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise SystemExit(exits.INTERRUPTED) from None
    finally:
        with contextlib.suppress(OSError):
            telemetry.shutdown()
