"""Hints for failures of programs that use what the sandbox doesn't have."""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Iterator
from typing import NoReturn

SANDBOXED = sys.platform == "wasi"

_OUTSIDE = "`tartlet run --native FILE` runs the program outside it."
_DEBUGGER = f"The sandbox has no debugger. {_OUTSIDE}"
_FILES = f"The sandbox has no files: pass text as arguments or messages. {_OUTSIDE}"
_INPUT = "The sandbox has no standard input: `await inferlet.receive()` gives what the client sends."
_NETWORK = f"The sandbox has no network. {_OUTSIDE}"
_PROCESSES = f"The sandbox has no processes and no shell. {_OUTSIDE}"
_THREADS = f"The sandbox has no threads: asyncio does several things at once. {_OUTSIDE}"
_PACKAGES = (
    "The sandbox has no modules beside `inferlet`, the standard library's and those that the program brings: make it a "
    f"directory with its modules and a requirements.txt. {_OUTSIDE}"
)
_LIBRARY = f"The sandbox has not all of the standard library. {_OUTSIDE}"

_MODULES = {
    "bdb": _DEBUGGER,
    "pdb": _DEBUGGER,
    "_thread": _THREADS,
    "concurrent.futures.thread": _THREADS,
    "concurrent.futures.process": _PROCESSES,
    "multiprocessing": _PROCESSES,
    "subprocess": _PROCESSES,
    **dict.fromkeys(
        ("ftplib", "http", "imaplib", "poplib", "smtplib", "socketserver", "ssl", "urllib.request", "xmlrpc"), _NETWORK
    ),
}
_OS_PROCESSES = ("fork", "forkpty", "kill", "popen", "posix_spawn", "system", "wait", "waitpid")
_LOOP_PROCESSES = "_make_subprocess_transport"


def no_breakpoint(*_: object, **__: object) -> NoReturn:
    """Raise, as the hook of `breakpoint()` in the sandbox, which would otherwise do nothing."""
    raise ModuleNotFoundError("No module named 'pdb'", name="pdb")


def hint(error: BaseException) -> str:
    """Say what the sandbox lacks that caused a failure, and what to do; "" if something else caused it.

    Example:
        >>> hint(RuntimeError("can't start new thread"))[:27]
        'The sandbox has no threads:'
        >>> hint(KeyError("a"))
        ''
    """
    for cause in chain(error, set()):
        if text := _hint(cause):
            return text
    return ""


def chain(error: BaseException, seen: set[int]) -> Iterator[BaseException]:
    """Yield the error, the parts of a group, and what each was raised from."""
    ahead: list[BaseException | None] = [error]
    while ahead:
        shown = ahead.pop()
        if shown is None or id(shown) in seen:
            continue
        seen.add(id(shown))
        yield shown
        parts = shown.exceptions if isinstance(shown, BaseExceptionGroup) else ()
        context = None if shown.__suppress_context__ else shown.__context__
        ahead += reversed((*parts, shown.__cause__, context))


def _hint(error: BaseException) -> str:
    match error:
        case ModuleNotFoundError(name=str(name)):
            return _module(name)
        case OSError():
            return _os_error(error)
        case RuntimeError() if str(error) == "can't start new thread":
            return _THREADS
        case NotImplementedError() if _raised_in(error) == _LOOP_PROCESSES:
            return _PROCESSES
        case AttributeError(name=str(name), obj=obj) if obj is os:
            return _PROCESSES if name in _OS_PROCESSES or name.startswith(("exec", "spawn")) else ""
        case EOFError() if "reading a line" in str(error):
            return _INPUT
    return ""


def _module(name: str) -> str:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        if text := _MODULES.get(".".join(parts[:length])):
            return text
    return _LIBRARY if parts[0] in sys.stdlib_module_names else _PACKAGES


def _os_error(error: OSError) -> str:
    if error.errno is None:  # raised by a program, with words of its own
        return ""
    if error.errno == errno.ENOTSUP and "process" in str(error):
        return _PROCESSES
    if isinstance(error, socket.gaierror) or (isinstance(error, PermissionError) and error.filename is None):
        return _NETWORK  # there are no sockets to be had
    return _FILES if error.filename is not None or isinstance(error, FileNotFoundError) else ""


def _raised_in(error: BaseException) -> str:
    """Return the name of the function that raised the error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_name if trace is not None else ""
