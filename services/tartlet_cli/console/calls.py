"""Calls the client from a command: runs an event loop, prints typed errors and chooses the exit code."""

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
    from tartlet_common.errors.registry import Unavailable

T = TypeVar("T")


def connect(server: str | None) -> AsyncClient:
    """Make a client of the server that the command line names.

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
            told = f"{client.address} is not an address: give unix:/path, host:port or `local`{scheme}"
            raise click.BadParameter(told, param_hint="--server")
        if environment.identity() is None:
            raise click.UsageError(
                f"{client.address} is a TCP address: give --tls-certificate, --tls-key and --tls-authority as well"
            )
    elif not path.exists():
        error = Unavailable(what=f"the server at {client.address}", detail="the socket does not exist")
        raise restarting(error, client.address)
    return client


def restarting(error: Unavailable, address: str) -> Unavailable:
    """Return the error of a server that can't be reached; it says so if a `tartlet serve` starts or restarts it."""
    from tartlet.local import holder
    from tartlet_common.errors.registry import Unavailable
    from tartlet_common.rpc.endpoints import unix_path

    path = unix_path(address)
    process = holder(path.parent) if path is not None else None
    if process is None:
        return error
    remedy = f"`tartlet serve` (process {process}) is starting the server: wait a moment, and try again."
    return Unavailable(**error.fields | {"remedy": remedy})


_AFTER_INPUT_S = 1.0
_LINES_AHEAD = 1024  # lines that were read from standard input and not sent yet, at most
_INBOX_S = 0.05  # pause before the next try if the program's inbox is full


async def talk(client: AsyncClient, program_id: str, follow: Coroutine[Any, Any, int], *, quiet: bool) -> int:
    """Run `follow` and return its result; meanwhile send each line of standard input to the program as a message.

    Raises:
        TartletError: a line can't be sent, for example because it is too long; the program has not ended.
    """
    from tartlet_common.errors.registry import UnknownProgram

    following, talking = (
        asyncio.ensure_future(follow),
        asyncio.ensure_future(send_lines(client, program_id, quiet=quiet)),
    )
    try:
        await asyncio.wait((following, talking), return_when=asyncio.FIRST_COMPLETED)
        if not following.done():
            with contextlib.suppress(UnknownProgram):  # the program has just ended
                talking.result()
        return await following
    finally:
        for task in (following, talking):
            task.cancel()
        await asyncio.gather(following, talking, return_exceptions=True)


async def send_lines(client: AsyncClient, program_id: str, *, quiet: bool = False) -> None:
    """Send each line of standard input to the program as a message, until the input ends.

    While the program's inbox is full, sending waits. If the program goes on for a while after the end of input, a note
    says that no more lines come, because the program may be waiting for one.
    """
    from tartlet_common.errors.registry import InboxFull

    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[bytes | None] = asyncio.Queue()
    room = threading.Semaphore(_LINES_AHEAD)

    def read() -> None:  # in a thread: the loop can wait for pipes and terminals, not for files
        rest = b""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the command has ended
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
        sys.stderr.write("end of input: no more lines are sent, and the program goes on\n")
        sys.stderr.flush()


def on_signals(handler: Callable[[asyncio.Task[Any]], object]) -> None:
    """Make the running loop call `handler` with the current task on SIGINT, SIGTERM and SIGHUP.

    By default SIGTERM and SIGHUP end the process at once, and its temporary files stay, a client's private key too.
    """
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, handler, task)


def with_client(server: str | None, work: Callable[[AsyncClient], Awaitable[T]]) -> T:
    """Run `work` with a client and return its result; an error is printed and ends the command, as a signal does.

    Raises:
        SystemExit: after an error or a signal.
    """
    return with_opened(lambda: connect(server), work)


def with_opened(
    opening: Callable[[], AbstractAsyncContextManager[AsyncClient]], work: Callable[[AsyncClient], Awaitable[T]]
) -> T:
    """Do the same as `with_client` with the client that `opening` yields."""
    from tartlet_common.errors.registry import TartletError, Unavailable
    from tartlet_common.telemetry import telemetry

    async def call() -> T:
        on_signals(asyncio.Task.cancel)
        async with opening() as client:
            try:
                return await work(client)
            except Unavailable as e:
                raise restarting(e, client.address) from e

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
