"""Tracebacks that show the user's program without the frames of the SDK and of asyncio.

The frames are left out of the whole chain of causes and groups, unless TARTLET_DEBUG is set. An exception that did not
pass through the program keeps all its frames. A line at the end gives a hint, such as what the sandbox lacks.
"""

from __future__ import annotations

import asyncio
import io
import linecache
import os
import traceback
from collections.abc import Container

from inferlet._hints import slips, source
from inferlet._hints.sandbox import SANDBOXED, hint

_SDK = __file__.rpartition("/_hints/")[0]
_ASYNCIO = asyncio.__file__.rpartition("/")[0]


def remember(filename: str, source: str) -> None:
    """Make the source's lines known to tracebacks, because the sandbox has no file to read them from."""
    lines = list(io.StringIO(source, newline=None))  # as Python has it: a form feed ends no line
    linecache.cache[filename] = (len(source), None, lines, filename)


def format_error(error: BaseException, filename: str, names: Container[str] = ()) -> str:
    """Format the traceback of `error`, trimmed to frames of the program `filename`.

    Args:
        error: the failure.
        filename: the program's file.
        names: the public names of the SDK, which a program may have forgotten to import.
    """
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, str) else f"exit status {error.code}"
    if isinstance(error, SyntaxError) and error.text is None:  # the compiler looked for it in a file
        error.text = linecache.getline(filename, error.lineno or 0)
    shown = traceback.TracebackException.from_exception(error)
    if not os.environ.get("TARTLET_DEBUG"):
        _trim(shown, filename)
    lines = [*shown.format(), source.hint(error) or slips.hint(error, names) or (hint(error) if SANDBOXED else "")]
    return "".join(lines).rstrip("\n")


def _is_ours(filename: str) -> bool:
    """Return whether a file belongs to the SDK, to asyncio or to Python's import system."""
    return filename.startswith((_SDK, _ASYNCIO, "<frozen importlib"))


def _own(frames: list[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """Return the frames that are neither ours nor code that a dataclass of ours generated."""
    followers = [*frames[1:], None]
    return [
        frame
        for frame, next_ in zip(frames, followers, strict=True)
        if not _is_ours(frame.filename)
        and not (frame.filename == "<string>" and next_ is not None and _is_ours(next_.filename))
    ]


def _trim(error: traceback.TracebackException, filename: str) -> None:
    ahead: list[traceback.TracebackException | None] = [error]
    seen: set[int] = set()
    while ahead:  # no recursion: what is raised again and again makes long chains
        shown = ahead.pop()
        if shown is None or id(shown) in seen:
            continue
        seen.add(id(shown))
        ahead += (shown.__cause__, shown.__context__, *(shown.exceptions or ()))
        first = next((i for i, frame in enumerate(shown.stack) if frame.filename == filename), None)
        if first is not None:  # what the program calls is shown, too, as far as it isn't ours
            shown.stack = traceback.StackSummary.from_list(_own(shown.stack[first:]))
        elif all(_is_ours(frame.filename) for frame in shown.stack):  # a syntax error, or the loop itself
            # No frames, and no heading for them: None is what `format` tests for.
            shown.stack = None  # type: ignore[assignment]
