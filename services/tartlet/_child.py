"""Runs one role as a child process in a process group of its own, waits until it serves, and ends the whole group."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from signal import Signals
from typing import BinaryIO

from tartlet_common.errors.registry import StartFailed, TartletError

_LAST_LINES = 20
_LINE_BYTES = 8192
_REAP_S = 2.0  # after SIGKILL


class Child:
    """A role's process.

    Args:
        role: "control", "runtime" or "worker".
        flags: its command line.
        log: file that the role's standard error is appended to.
        env: the role's environment.
        echo: called with the role and each line of its standard error.
        progress: called with the role and each line about its start.
        module: the Python module that runs the role; "": `tartlet_ROLE`.
    """

    def __init__(
        self,
        role: str,
        flags: Sequence[str],
        *,
        log: Path,
        env: dict[str, str],
        echo: Callable[[str, bytes], None] | None = None,
        progress: Callable[[str, str], None] | None = None,
        module: str = "",
    ) -> None:
        self.role = role
        self._module = module or f"tartlet_{role}"
        self.last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self.error: TartletError | None = None  # the error that the role reported
        self._flags = flags
        self._log = log
        self._env = env
        self._echo = echo
        self._progress = progress
        self._process: asyncio.subprocess.Process | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def pid(self) -> int:
        """The id of the process; 0 before the start."""
        return self._process.pid if self._process else 0

    @property
    def served(self) -> bool:
        """Whether the role has served."""
        return self._ready.done()

    async def start(self) -> None:
        """Start the process; `ready` waits until it serves.

        Raises:
            StartFailed: the system can't start a process, for example for want of file descriptors. `cause` then
                returns the same error.
        """
        try:
            await self._start()
        except OSError as e:
            self.error = StartFailed(role=self.role, detail=e.strerror or repr(e))
            raise self.error from e

    async def _start(self) -> None:
        read_fd, write_fd = os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # else a file in the current directory could be imported in place of one of our modules
                "-m",
                self._module,
                *self._flags,
                "--ready-fd",
                str(write_fd),
                "--parent-pid",
                str(os.getpid()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(write_fd,),
                env=self._env,
                start_new_session=True,  # Ctrl-C in the terminal reaches only the parent, which ends roles in order
            )
        except BaseException:
            os.close(read_fd)
            raise
        finally:
            os.close(write_fd)
        self._tasks = [
            asyncio.create_task(self._read_notices(read_fd), name=f"{self.role} notices"),
            asyncio.create_task(self._read_errors(), name=f"{self.role} stderr"),
        ]

    async def ready(self) -> None:
        """Wait until the role serves.

        Raises:
            TartletError: the role ended before that: the error that it reported, or `StartFailed` with its last lines.
        """
        process = self._running()
        ended = asyncio.ensure_future(process.wait())
        try:
            await asyncio.wait((ended, self._ready), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
        if not self._ready.done():
            raise await self.cause()

    async def wait(self) -> int:
        """Wait until the role has ended and its output is read; return its exit code."""
        if self._process is None and self.error is not None:
            return os.EX_OSERR
        code = await self._running().wait()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return code

    async def cause(self) -> TartletError:
        """Return why the role ended: the error that it reported, or else its exit code and last lines."""
        code = await self.wait()
        if self.error is not None:
            return self.error
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        lines = "\n".join(self.last_lines)
        return StartFailed(role=self.role, detail=f"{how}\n{lines}".rstrip())

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process if it still runs."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL to the whole process group."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def stop(self, grace_s: float, how: Signals = Signals.SIGTERM) -> None:
        """Send a signal, and SIGKILL after `grace_s`; return when the role and all that it started have ended.

        A role that never served holds no state and may be busy loading: it gets SIGKILL at once.
        """
        if self._process is None:
            return
        if self.served:
            self.signal(how)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), grace_s)
        self.kill()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), _REAP_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _running(self) -> asyncio.subprocess.Process:
        assert self._process is not None, "start() first"
        return self._process

    async def _read_notices(self, fd: int) -> None:
        """Read the lines of the ready descriptor: `ready`, `progress TEXT`, `error NUMBER JSON`."""
        reader = asyncio.StreamReader(limit=1 << 20)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb"))
        try:
            while line := await reader.readline():
                word, _, rest = line.decode(errors="replace").rstrip("\n").partition(" ")
                if word == "ready" and not self._ready.done():
                    self._ready.set_result(None)
                elif word == "error":
                    number, _, fields = rest.partition(" ")
                    self.error = TartletError.from_wire(int(number), fields)
                elif word == "progress" and self._progress is not None:
                    self._progress(self.role, rest)
        finally:
            transport.close()

    async def _read_errors(self) -> None:
        """Copy the role's standard error to the log, to the kept last lines and to `echo`."""
        stream = self._running().stderr
        assert stream is not None
        with contextlib.ExitStack() as files:
            log: BinaryIO | None = None
            with contextlib.suppress(
                OSError
            ):  # a broken log must not stop the reading: the role would block on its full pipe
                log = files.enter_context(self._log.open("ab", buffering=0))
            while line := await _line(stream):
                self.last_lines.append(line.decode(errors="replace").rstrip())
                if log is not None:
                    with contextlib.suppress(OSError):  # a full disk must not end the role
                        log.write(line)
                if self._echo is not None:
                    self._echo(self.role, line)


async def _line(stream: asyncio.StreamReader) -> bytes:
    """Read a line, cut where it is very long; b"" at the end."""
    line, size = b"", 0
    while part := await _part(stream):
        line += part[: max(0, _LINE_BYTES - size)]
        size += len(part)
        if part.endswith(b"\n"):
            break
    if size <= _LINE_BYTES:
        return line
    return line.decode(errors="ignore").encode() + b"... (%d bytes in all)\n" % size


async def _part(stream: asyncio.StreamReader) -> bytes:
    """Read the rest of a line, or as much as fits the reader's buffer; b"" at the end."""
    try:
        return await stream.readuntil(b"\n")
    except asyncio.IncompleteReadError as e:
        return e.partial
    except asyncio.LimitOverrunError as e:
        return await stream.readexactly(e.consumed)
