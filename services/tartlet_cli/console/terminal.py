"""Writes a program's run to the terminal: a line of progress, the program's bytes as they come, a closing line."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, Self

from tartlet.events import Accepted, Ended, Event, Message, Stderr, Stdout, Usage
from tartlet_cli.console.exits import describe
from tartlet_common.errors.registry import ProgramFailed, TartletError

_WIPE = "\r\x1b[2K"
_LEAST_S = 5e-6  # smaller times would be shown as 0.00 ms
_WIDTH = 80  # assumed for a terminal that doesn't report its width


class ProgressLine:
    """A line of progress on standard error that is overwritten and then wiped; only if that is a terminal."""

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        """`write` replaces the function that writes to standard error."""
        self._write = write or _write_error
        self._terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._line = ""

    def show(self, text: str) -> None:
        """Replace the line."""
        self._line = text
        if self._terminal:
            width = os.get_terminal_size(sys.stderr.fileno()).columns or _WIDTH
            self._write(f"{_WIPE}{text[: width - 1]}")

    def clear(self) -> None:
        """Wipe the line."""
        if self._terminal and self._line:
            self._write(_WIPE)
        self._line = ""

    @contextlib.contextmanager
    def above(self) -> Iterator[None]:
        """Put the text that the block writes to the terminal above the line."""
        line = self._line
        self.clear()
        yield
        if line:
            self.show(line)


class Waiting:
    """The roles that a start still waits for.

    Example:
        >>> waiting = Waiting(("control", "runtime", "worker"))
        >>> waiting.told("worker", "importing torch")
        >>> waiting.serves("control")
        >>> print(waiting)
        starting: waiting for runtime and worker (importing torch)
    """

    def __init__(self, roles: Iterable[str]) -> None:
        self._doing = dict.fromkeys(roles, "")

    def told(self, role: str, text: str) -> None:
        """Note what a role does at the moment."""
        self._doing[role] = text

    def serves(self, role: str) -> None:
        """Note that a role is no longer waited for."""
        self._doing.pop(role, None)

    def __str__(self) -> str:
        late = [f"{role} ({text})" if text else role for role, text in self._doing.items()]
        return f"starting: waiting for {', '.join([*late[:-2], ' and '.join(late[-2:])])}" if late else "started"


def _write_error(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


class Silence:
    """A block that calls `say` once, when nothing was heard for `after_s` seconds (None: never)."""

    def __init__(self, after_s: float | None, say: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._after_s = after_s
        self._say = say
        self._heard = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self.heard()
        self._wait()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def heard(self) -> None:
        """Start the time again."""
        self._heard = self._loop.time()

    def _wait(self) -> None:
        if self._after_s is None:
            return
        if self._loop.time() >= self._heard + self._after_s:
            self._say()
        else:
            self._timer = self._loop.call_at(self._heard + self._after_s, self._wait)


class Printer:
    """Prints events: the program's output verbatim, its result on a line of its own, then the closing line.

    Args:
        quiet: print no closing line.
        as_json: print events as lines of JSON to standard output, and nothing else there.
        native: the program's own process prints its traceback to this terminal.
    """

    def __init__(self, *, quiet: bool = False, as_json: bool = False, native: bool = False) -> None:
        self._quiet = quiet
        self._native = native
        self._as_json = as_json
        self._out: BinaryIO = sys.stdout.buffer
        self._at_line_start = True
        self.started_s = 0.0
        """Seconds that the start of this command's own stack took; 0: it started none."""

    def event(self, event: Event) -> None:
        """Print one event."""
        if self._as_json:
            self._write(json.dumps(as_json(event), ensure_ascii=False).encode() + b"\n")
            return
        match event:
            case Message(data=data) | Stdout(data=data):
                self._write(data)
            case Stderr(data=data):
                sys.stderr.buffer.write(data)
                sys.stderr.buffer.flush()
            case Ended():
                self._end(event)
            case Accepted():
                pass

    def note(self, text: str) -> None:
        """Print a line of the command's own to standard error."""
        sys.stderr.write(f"{'' if self._at_line_start or self._as_json else chr(10)}{text}\n")
        sys.stderr.flush()

    def _end(self, event: Ended) -> None:
        if not self._at_line_start:
            self._write(b"\n")
        if event.result is not None:
            self._write(event.result.encode(errors="replace").rstrip(b"\n") + b"\n")
        if event.error is not None and not (self._native and isinstance(event.error, ProgramFailed)):
            sys.stderr.write(describe(event.error) + "\n")
        if not self._quiet:
            sys.stderr.write(closing_line(event.usage, self.started_s) + "\n")
        sys.stderr.flush()

    def _write(self, data: bytes) -> None:
        if data:
            self._out.write(data)
            self._out.flush()
            self._at_line_start = data.endswith(b"\n")


def closing_line(usage: Usage, started_s: float = 0.0) -> str:
    """Summarise tokens, time to the first token and time per token.

    For a program that chose tokens from distributions by itself, the line counts those. `started_s` is the time that
    starting a stack took; 0: a server was running already.

    Example:
        >>> closing_line(Usage(sampled_tokens=64, first_token_s=0.0213, per_token_s=0.00412, wall_s=0.29))
        '[64 tokens, first after 21.3 ms, 4.12 ms a token, 0.29 s in all]'
        >>> closing_line(Usage(distributions=8, first_token_s=0.0213, per_token_s=0.00412, wall_s=0.05))
        '[8 distributions for the program to sample from, first after 21.3 ms, 4.12 ms each, 0.05 s in all]'
        >>> closing_line(Usage(wall_s=0.29), started_s=4.1)
        '[no tokens sampled, 0.29 s in all, started in 4.1 s]'
    """
    count, noun, each = usage.sampled_tokens, "token", "a token"
    if not count:
        count, noun, each = usage.distributions, "distribution", "each"
    total = [f"{usage.wall_s:.2f} s in all", *([f"started in {started_s:.1f} s"] if started_s else [])]
    if not count:
        return "[" + ", ".join(["no tokens sampled", *total]) + "]"
    parts = [f"{count} {noun}" + ("s" if count > 1 else "")]
    if not usage.sampled_tokens:
        parts[0] += " for the program to sample from"
    parts.append(f"first after {_ms(usage.first_token_s)} ms")
    if count > 1 and usage.per_token_s >= _LEAST_S:  # else all came at once
        parts.append(f"{_ms(usage.per_token_s)} ms {each}")
    return "[" + ", ".join([*parts, *total]) + "]"


def _ms(seconds: float) -> str:
    ms = seconds * 1e3
    return f"{ms:.0f}" if ms >= 100 else f"{ms:.1f}" if ms >= 10 else f"{ms:.2f}"


def as_json(event: Event) -> dict[str, Any]:
    """Convert an event to JSON values; bytes become text, or latin-1 under `data_latin1` if they aren't UTF-8."""
    line: dict[str, Any] = {"event": type(event).__name__.lower(), "program_id": event.program_id}
    match event:
        case Message() | Stdout() | Stderr():
            line["offset"] = event.offset
            try:
                line["text"] = event.data.decode()
            except UnicodeDecodeError:
                line["data_latin1"] = event.data.decode("latin-1")
        case Ended():
            line |= {"offset": event.offset, "success": event.success, "result": event.result}
            line["error"] = error_json(event.error)
            line["usage"] = usage_json(event.usage)
        case Accepted():
            pass
    return line


def usage_json(usage: Usage) -> dict[str, Any]:
    """Convert usage to JSON values."""
    return {name: getattr(usage, name) for name in usage.__slots__}


def error_json(error: TartletError | None) -> dict[str, Any] | None:
    """Convert an error to JSON values."""
    if error is None:
        return None
    return {
        "number": error.number,
        "name": error.name,
        "message": str(error),
        "remedy": error.remedy,
        "retryable": error.retryable,
        "fields": error.fields,
    }
