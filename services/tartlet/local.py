"""`LocalStack`: runs control, runtime and a worker as child processes on this machine, as `tartlet serve` does.

The processes talk over Unix sockets in one private directory. They start at the same time and dial until they reach
each other, are restarted when they die, and end together. No role outlives this process, even if it is killed.

Example:
    ::

        async with tartlet.local.LocalStack(StackConfig(engine="fake")) as stack:
            async with tartlet.AsyncClient(stack.address) as client:
                ...
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from tartlet._child import Child
from tartlet_common.config.paths import cache_dir, check_socket, make_private, run_dir
from tartlet_common.errors.registry import AddressInUse, DiskFull, StartFailed, TartletError

ROLES = ("control", "runtime", "worker")
"""The roles of every stack; a stack with an HTTP address runs a gateway too."""
_START_ORDER = ("worker", "runtime", "control", "gateway")  # the slowest first
SOCKETS = ("runtime.sock", "control.sock", "control.sock.frames", "guest.sock")
"""The sockets in the run directory."""

_BACKOFF_S = (0.05, 0.2, 0.5, 1.0, 2.0, 5.0)  # pause before the n-th restart in a row
_STABLE_S = 10.0  # after running for this long, a role's next restart has the first pause again
_GRACE_S = {"gateway": 6.0, "runtime": 5.0, "control": 5.0, "worker": 5.0}


@dataclass(frozen=True, slots=True)
class StackConfig:
    """The configuration of a local stack.

    Args:
        engine: "torch" or "fake"; None: the worker's setting, whose default is torch.
        model: checkpoint directory for torch; None: the worker's setting.
        directory: directory of sockets and logs; default: `tartlet_common.config.paths.run_dir()`.
        config: TOML file that every role reads.
        flags: more flags by role, such as `{"worker": ["--page-size", "8"]}`.
        env: added to the roles' environment.
        start_timeout_s: seconds that the start may take.
        http: `host:port` where a gateway serves the HTTP API; "" for none.
        modules: Python modules by role, which run in place of `tartlet_ROLE`.
    """

    engine: str | None = None
    model: Path | None = None
    directory: Path | None = None
    config: Path | None = None
    flags: Mapping[str, Sequence[str]] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    start_timeout_s: float = 180.0
    http: str = ""
    modules: Mapping[str, str] = field(default_factory=dict)

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of this stack."""
        return (*ROLES, "gateway") if self.http else ROLES


@dataclass(frozen=True, slots=True)
class Started:
    """A role serves. `restarts` counts how often it had died before."""

    role: str
    pid: int
    restarts: int


@dataclass(frozen=True, slots=True)
class Progress:
    """A role reports the progress of its start."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Died:
    """A role ended by itself; it is restarted after `restart_in_s`."""

    role: str
    cause: TartletError
    restart_in_s: float
    served: bool = False  # whether the role served before it ended

    @property
    def why(self) -> str:
        """The cause in words, without "did not start" if the role had served."""
        if not (self.served and isinstance(self.cause, StartFailed)):
            return str(self.cause)
        how, _, lines = str(self.cause.fields["detail"]).partition("\n")
        return how if how.startswith("killed") else f"{how}\n{lines}".rstrip()  # it hadn't known of a signal


StackEvent = Started | Progress | Died


def holder(directory: Path) -> int | None:
    """Return the id of the process whose stack uses the directory, or None."""
    try:
        lock = os.open(directory / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return int(os.read(lock, 32) or 0) or None
    else:
        return None
    finally:
        os.close(lock)


class LocalStack:
    """The roles as children of this process.

    Args:
        config: the stack's configuration.
        report: called with each event of the stack.
        echo: called with a role and each line (with its newline) that it writes to standard error.
    """

    def __init__(
        self,
        config: StackConfig,
        report: Callable[[StackEvent], None] | None = None,
        echo: Callable[[str, bytes], None] | None = None,
    ) -> None:
        self._config = config
        self._report = report or (lambda _: None)
        self._echo = echo
        self.directory = config.directory or run_dir()
        self._children: dict[str, Child] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._up: dict[str, asyncio.Event] = {}
        self._stopping = False
        self._lock: int | None = None  # descriptor of the directory's lock

    @property
    def address(self) -> str:
        """The runtime's address, for clients."""
        return f"unix:{self.directory / 'runtime.sock'}"

    @property
    def control_address(self) -> str:
        """Control's address."""
        return f"unix:{self.directory / 'control.sock'}"

    @property
    def guest_socket(self) -> Path:
        """The socket that native programs connect to."""
        return self.directory / "guest.sock"

    @property
    def log_dir(self) -> Path:
        """The directory with a log file for each role."""
        return self.directory / "logs"

    def pid(self, role: str) -> int:
        """Return the current process id of a role."""
        return self._children[role].pid

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start all roles and wait until they serve; from then on, restart roles that die.

        Raises:
            InvalidConfig: a setting is wrong; no role was started.
            TartletError: a role didn't start, for example AddressInUse or CheckpointMissing; all roles were ended.
        """
        self._check_settings()
        for name in SOCKETS:
            check_socket(self.directory / name)
        self._check_guest()
        try:
            make_private(self.directory)
            self._claim()
            self.log_dir.mkdir(exist_ok=True)
            for role in self._config.roles:
                self._rotate(role)
        except OSError as e:
            raise DiskFull(path=str(self.directory), detail=e.strerror or str(e)) from e
        try:
            async with asyncio.timeout(self._config.start_timeout_s):
                await self._start_all()
        except TimeoutError as e:
            late = [role for role in self._config.roles if role not in self._up or not self._up[role].is_set()]
            await self.stop()
            detail = f"not ready after {self._config.start_timeout_s:g} s; logs are in {self.log_dir}"
            raise StartFailed(role=" and ".join(late), detail=detail) from e
        except BaseException:
            await self.stop()
            raise
        self._keepers = [asyncio.create_task(self._keep(role), name=f"keep {role}") for role in self._config.roles]

    async def stop(self) -> None:
        """End every role, each after the roles that use it; no process is left."""
        self._stopping = True
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        self._keepers = []
        try:
            for role in ("gateway", "runtime", "control", "worker"):
                if role in self._children:
                    how = signal.SIGINT if role == "runtime" else signal.SIGTERM  # no other runtime goes on
                    await self._children[role].stop(_GRACE_S[role], how)
        finally:
            self.kill()
            self._release()

    def kill(self) -> None:
        """Send SIGKILL to every running role, without waiting."""
        self._stopping = True
        for child in self._children.values():
            child.kill()

    async def until_serving(self, role: str) -> None:
        """Wait until `role` serves, again if it is being restarted."""
        await self._up[role].wait()

    # ---- one role -----------------------------------------------------------------------------------------------

    async def _start_all(self) -> None:
        for role in sorted(self._config.roles, key=_START_ORDER.index):
            self._children[role] = self._child(role)
            self._up[role] = asyncio.Event()
            await self._children[role].start()
        waiting = {asyncio.ensure_future(self._until_ready(role, 0)): role for role in self._config.roles}
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                await task
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _until_ready(self, role: str, restarts: int) -> None:
        child = self._children[role]
        await child.ready()
        self._up[role].set()
        self._report(Started(role, child.pid, restarts))

    async def _keep(self, role: str) -> None:
        """Restart a role whenever it ends."""
        loop = asyncio.get_running_loop()
        restarts, in_a_row, since = 0, 0, loop.time()
        while True:
            child = self._children[role]
            await child.wait()
            if self._stopping:
                return
            self._up[role].clear()
            child.kill()  # whatever it started
            if loop.time() - since > _STABLE_S:
                in_a_row = 0
            pause_s = _BACKOFF_S[min(in_a_row, len(_BACKOFF_S) - 1)]
            self._report(Died(role, await child.cause(), pause_s, child.served))
            await asyncio.sleep(pause_s)
            restarts, in_a_row, since = restarts + 1, in_a_row + 1, loop.time()
            self._children[role] = self._child(role)
            with contextlib.suppress(TartletError):  # it died again, or can't start: the loop's next turn reports it
                await self._children[role].start()
                await self._until_ready(role, restarts)

    def _check_settings(self) -> None:
        """Report a mistake in the configuration file or the environment once, before three processes report it."""
        env = {**os.environ, **self._config.env}
        prefixes = tuple(f"TARTLET_{role.upper()}_" for role in self._config.roles)
        if self._config.config is None and not any(name.startswith(prefixes) for name in env):
            return
        from tartlet_common.config.load import load  # takes a tenth of a second, which most starts can save
        from tartlet_common.config.settings import ROLES as SETTINGS

        for role in self._config.roles:
            load(SETTINGS[role], role, file=self._config.config, env=env)

    def _check_guest(self) -> None:
        """Check, before three processes start, that a Python guest is built; the runtime checks its version.

        Raises:
            StartFailed: the cache directory has no guest. Only a directory from this process's environment is checked.
        """
        env = {**os.environ, **self._config.env}
        elsewhere = (
            self._config.config is not None or "TARTLET_RUNTIME_CACHE_DIR" in env or "runtime" in self._config.flags
        )
        if elsewhere or "TARTLET_CACHE_DIR" in self._config.env:
            return
        if not any((cache_dir() / "guest").glob("python-*.json")):
            detail = "the Python guest is not built: run `make setup` or `python -m tartlet_runtime.guests.build`"
            raise StartFailed(role="runtime", detail=detail)

    def _child(self, role: str) -> Child:
        return Child(
            role,
            self._flags(role),
            log=self.log_dir / f"{role}.log",
            env={**os.environ, **self._config.env, "TARTLET_RUN_DIR": str(self.directory)},
            echo=self._echo,
            progress=lambda role, text: self._report(Progress(role, text)),
            module=self._config.modules.get(role, ""),
        )

    def _flags(self, role: str) -> list[str]:
        """Return the command line of a role; its sockets follow from TARTLET_RUN_DIR."""
        flags: list[str] = []
        if self._config.config is not None:
            flags += ["--config", str(self._config.config)]
        if role == "worker":
            if self._config.engine is not None:
                flags += ["--engine", self._config.engine]
            if self._config.model is not None:
                flags += ["--model", str(self._config.model)]
        if role == "gateway":
            flags += ["--address", self._config.http]
        return [*flags, *self._config.flags.get(role, ())]

    def _claim(self) -> None:
        """Take the directory's lock, so that two stacks can't share the directory."""
        lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            os.close(lock)
            raise AddressInUse(address=str(self.directory)) from e
        os.ftruncate(lock, 0)
        os.write(lock, b"%d\n" % os.getpid())  # for `holder`
        self._lock = lock

    def _release(self) -> None:
        if self._lock is None:
            return
        for name in SOCKETS:
            with contextlib.suppress(OSError):
                (self.directory / name).unlink()
        os.close(self._lock)
        self._lock = None

    def _rotate(self, role: str) -> None:
        """Keep the log of the previous run."""
        log = self.log_dir / f"{role}.log"
        if log.exists():
            log.replace(log.with_suffix(".log.1"))
