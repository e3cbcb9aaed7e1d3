"""Runs a role as a process: flags, logging, telemetry, signals, readiness, and an end when the parent dies."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tartlet_common.config.load import add_flags, load, unknown_flag
from tartlet_common.config.settings import ROLES
from tartlet_common.errors.exit_codes import exit_code
from tartlet_common.errors.registry import InternalError, TartletError
from tartlet_common.process.health import Health, served
from tartlet_common.rpc import grpc_io as _grpc_io  # noqa: F401 - before gRPC is imported
from tartlet_common.rpc.endpoints import install_uvloop
from tartlet_common.telemetry import telemetry
from tartlet_common.telemetry.certificates import show_expiry

if TYPE_CHECKING:
    from tartlet_common.config.settings import _Settings

S = TypeVar("S", bound="_Settings")

_PR_SET_PDEATHSIG = 1
log = logging.getLogger("tartlet")


class Notify:
    """Reports a role's start to the process that started it, over the file descriptor given as --ready-fd."""

    def __init__(self, fd: int | None, health: Health | None = None) -> None:
        """Report to `fd` (None: to no process); `health` holds the state that probes ask for."""
        self._fd = fd
        self._health = health or Health()

    def ready(self, detail: str = "") -> None:
        """Report that the role serves; `detail` is added to the line."""
        self._health.set_ready()
        self._write(f"ready {detail}".rstrip() + "\n")

    def set_ready(self, reason_if_not: str = "") -> None:
        """Set the answer of `/readyz`: ready, or the reason why the role takes no new work ("draining", ...)."""
        self._health.set_ready(reason_if_not)

    def progress(self, text: str) -> None:
        """Report one line about a start that takes long."""
        self._write(f"progress {text}\n")

    def error(self, error: TartletError) -> None:
        """Report the error that ends the role."""
        self._write(f"error {error.number} {error.to_json().decode()}\n")

    def _write(self, line: str) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):  # the reader has gone
                os.write(self._fd, line.encode())


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {"time": record.created, "level": record.levelname.lower(), "logger": record.name}
        entry["message"] = record.getMessage()
        if of_trace := telemetry.trace_id():
            entry["trace_id"] = of_trace
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


class _TextFormatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        of_trace = telemetry.trace_id()
        return super().formatMessage(record) + (f" (trace {of_trace})" if of_trace else "")


def run_role(
    role: str,
    model: type[S],
    main: Callable[[S, Notify], Awaitable[None]],
    argv: list[str] | None = None,
    *,
    uvloop: bool = True,
) -> int:
    """Run a role to its end and return the exit code: 0, 2 if its settings are wrong, 3 after another failure.

    SIGTERM and SIGINT cancel `main`, which cleans up and returns. With `uvloop`, the role runs on uvloop where that is
    installed.
    """
    prog = f"tartlet serve --role {role}"
    usage = f"{prog} [--help] [--config FILE] [--SETTING VALUE ...]"
    parser = argparse.ArgumentParser(prog=prog, usage=usage, description=model.__doc__, allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE", type=Path, help="TOML file with a table for each role")
    parser.add_argument("--ready-fd", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--parent-pid", type=int, default=None, help=argparse.SUPPRESS)
    add_flags(parser, model)
    known, unknown = parser.parse_known_args(argv)
    if unknown:
        parser.error(unknown_flag(unknown[0], model))
    flags = vars(known)
    health = Health()
    notify = Notify(flags.pop("ready_fd"), health)
    parent = flags.pop("parent_pid")
    if parent is not None:
        _die_with(parent)
    try:
        settings = load(model, role, file=flags.pop("config"), env=os.environ, flags=flags).settings
        _log_to_stderr(settings.log_format, settings.log_level, role)
        _allow_files()
        telemetry.setup(role, scraped=bool(settings.health_address))
        show_expiry(_certificates(settings))
        if uvloop:
            install_uvloop()
        asyncio.run(_until_signalled(_with_health(settings.health_address, health, main(settings, notify))))
    except TartletError as e:
        return _fail(notify, role, e)
    except Exception as e:
        log.exception("%s broke", role)
        return _fail(notify, role, InternalError(detail=repr(e)))
    finally:
        telemetry.shutdown()
    return 0


def _certificates(settings: _Settings) -> dict[str, Path]:
    """Return the files of the certificates that a role presents, by the names of the settings."""
    named = {name: getattr(settings, name, None) for name in ("tls_certificate", "http_certificate")}
    return {name: path for name, path in named.items() if path is not None}


def _allow_files() -> None:
    """Raise the soft limit of open files to the hard limit: the usual 1024 is for programs that call `select`."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def address_space() -> int | None:
    """Raise the soft limit of address space to the hard limit and return that in bytes; None: there is no limit."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    return None if most == resource.RLIM_INFINITY else most


def _fail(notify: Notify, role: str, error: TartletError) -> int:
    notify.error(error)
    sys.stderr.write(f"tartlet {role}: {error.name} ({error.number}): {error.explained}\n")
    return exit_code(error)


async def _with_health(address: str, health: Health, work: Awaitable[None]) -> None:
    async with served(health, address):
        await work


async def _until_signalled(work: Awaitable[None]) -> None:
    task = asyncio.ensure_future(work)
    signals_cancel(task)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def signals_cancel(task: asyncio.Task[Any]) -> None:
    """Make SIGTERM and SIGINT cancel a task, in place of their earlier handlers. The signal's name is the message."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        # Once only: a second signal, or the parent's death after the first, must not cancel the cleaning up.
        loop.add_signal_handler(number, _cancel, task, number.name)


def _cancel(task: asyncio.Task[Any], signal_name: str) -> None:
    if not task.cancelling():
        task.cancel(signal_name)


def _log_to_stderr(form: str, level: str, role: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    text = _TextFormatter(f"%(asctime)s {role} %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(_JsonFormatter() if form == "json" else text)
    handler.addFilter(_is_no_client_that_left)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def _is_no_client_that_left(record: logging.LogRecord) -> bool:
    """False for gRPC's traceback about a client that left while a message was written to it, which is no fault."""
    raised = record.exc_info[1] if record.exc_info else None
    return record.name != "grpc._cython.cygrpc" or type(raised).__name__ != "ExecuteBatchError"


def _die_with(parent: int) -> None:
    """Make the kernel end this process when its parent dies, so that no role outlives a killed `tartlet serve`."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # the parent died before the call above
        sys.exit(1)


__all__ = ["ROLES", "Notify", "run_role", "signals_cancel"]
