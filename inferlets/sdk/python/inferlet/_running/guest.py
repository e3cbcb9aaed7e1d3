"""Runs one program, from its source to its result.

Two hosts call `run`: the component's glue in the sandbox, and `inferlet._running.native` outside it.
"""

from __future__ import annotations

import asyncio
import inspect
import marshal
import os
import random
import sys
import threading
import traceback
import types
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import inferlet
from inferlet._calls import program, sharing
from inferlet._hints.source import defines_alone
from inferlet._hints.tracebacks import format_error, remember
from inferlet._models import models, vocab
from inferlet._running import output
from inferlet._running.bundle import Bundle, Codes, is_bundle
from inferlet._running.loop import Loop, ProgramLoop
from inferlet._wire.channel import channel
from inferlet._wire.channel import reset as reset_channel

_reserve = [bytes(256 << 10)]
"""Memory that is freed to report a failure after the program has used up all other memory."""


loop_type: type[ProgramLoop] = Loop
"""The host sets this once: the loop of native programs has sockets."""

_made_ahead: list[ProgramLoop] = []

_REFUSED = (SyntaxError, ValueError, RecursionError, MemoryError)
"""What `compile` raises for a text that is no program."""


class ProgramExit(Exception):
    """The program ended itself with a failure, by `sys.exit` with a status or a text."""


def run(source: str, filename: str, args: Sequence[str], code: bytes = b"") -> str | None:
    """Run a program to its end.

    Args:
        source: the program's Python text, or the archive of a program of several files, one character a byte.
        filename: its name in tracebacks.
        args: its arguments, in `sys.argv` after its name.
        code: what `compiled` made of it, or nothing.

    Returns:
        What `main` returned, as text; None if it returned None.

    Raises:
        BaseException: what the program raised. Its attribute `guest_traceback` has the text for the user.
    """
    start(args)
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = output.open_streams()
    # The global generator was seeded when the sandbox was built: every program would draw the same.
    seed_random(os.urandom(16))
    try:
        return execute(source, filename, args, code)
    finally:
        flush()
        sys.stdout, sys.stderr = streams


def prepare() -> None:
    """Make an event loop ahead of the next program."""
    if not _made_ahead:
        _made_ahead.append(loop_type())


def seed_random(drawn: bytes) -> None:
    """Seed `random` with bytes of the host's randomness."""
    random.seed(int.from_bytes(drawn, "little"))


def flush() -> None:
    """Submit what is still recorded: messages, output, frees."""
    channel.flush()


def start(args: Sequence[str]) -> None:
    """Forget the last program of this process."""
    reset_channel()
    program.reset(args)
    sharing.reset()
    models.reset()
    vocab.reset()


def execute(source: str, filename: str, args: Sequence[str], code: bytes = b"") -> str | None:
    """Run the program with the present streams and random numbers; see `run`."""
    codes: Codes = marshal.loads(code) if code else {}  # noqa: S302 - the host has it of `compiled`
    if not is_bundle(source):
        text = source.removeprefix("\ufeff")  # what some editors write first, and CPython takes
        return _execute(text, filename, args, codes)
    bundle = Bundle(source, filename, codes)
    with bundle.installed():
        return _execute(bundle.entry_source(), bundle.entry, args, codes)


def check(source: str, filename: str) -> str:
    """Compile a program without running it; return what is wrong with it, "" for nothing.

    Args:
        source: as for `run`.
        filename: its name in messages.
    """
    for path, text in _texts(source, filename):
        try:
            compile(text, path, "exec", dont_inherit=True)
        except _REFUSED as error:
            return "".join(traceback.format_exception_only(error)) or repr(error)
    return ""


def compiled(source: str, filename: str) -> str:
    """Compile a program, for runs in other sandboxes.

    Args:
        source: as for `run`.
        filename: its name in tracebacks.

    Returns:
        The code of the program's own modules for `run`, one character a byte. "" if each run must compile the program
        itself: it has an error, or a warning, which belongs to the output of every run.
    """
    codes: Codes = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for path, text in _texts(source, filename):
            try:
                codes[path] = marshal.dumps(compile(text, path, "exec", dont_inherit=True))
            except (*_REFUSED, Warning):
                return ""
    return marshal.dumps(codes).decode("latin-1")


def _texts(source: str, filename: str) -> Iterable[tuple[str, str | bytes]]:
    """Yield path and text of a program's own modules."""
    return Bundle(source, filename).sources() if is_bundle(source) else [(filename, source.removeprefix("\ufeff"))]


def _execute(source: str, filename: str, args: Sequence[str], codes: Codes) -> str | None:
    remember(filename, source)
    argv, sys.argv = sys.argv, [filename, *args]
    new_event_loop, before = asyncio.events.new_event_loop, sys.modules.get("__main__")

    def own_loop() -> asyncio.AbstractEventLoop:
        """Make a loop for `asyncio.run` in a program; threads outside the sandbox have loops without a host."""
        return loop_type() if threading.current_thread() is threading.main_thread() else new_event_loop()

    asyncio.events.new_event_loop = asyncio.new_event_loop = own_loop
    module = types.ModuleType("__main__")
    module.__file__ = filename
    sys.modules["__main__"] = module
    loop = _made_ahead.pop() if _made_ahead else loop_type()
    ProgramLoop.runs = 0
    ProgramLoop.results.clear()
    try:
        result = _run_main(loop, module, source, filename, args, codes)
        _raise_failures()
        if program.state.next_args is not None:
            program.record_continue(program.state.next_args, program.state.inbox.untaken())
        return result
    except SystemExit as error:
        failure = ProgramExit(_tell(error, filename))
        failure.guest_traceback = str(failure)  # type: ignore[attr-defined]
        raise failure from None
    except BaseException as error:
        error.guest_traceback = _tell(error, filename)  # type: ignore[attr-defined]
        raise
    finally:
        for queue in channel.queues.values():
            queue.hush()
        loop.finish()
        asyncio.events.new_event_loop = asyncio.new_event_loop = new_event_loop
        sys.argv = argv
        if before is not None:
            sys.modules["__main__"] = before


def _tell(error: BaseException, filename: str) -> str:
    _reserve.clear()
    try:
        return format_error(error, filename, inferlet.__all__)
    except MemoryError:
        return "MemoryError"


def _run_main(
    loop: ProgramLoop, module: types.ModuleType, source: str, filename: str, args: Sequence[str], codes: Codes
) -> str | None:
    channel.loop = loop
    try:
        code = codes.get(filename)
        ready = compile(source, filename, "exec", dont_inherit=True) if code is None else marshal.loads(code)  # noqa: S302
        exec(ready, module.__dict__)  # noqa: S102 - running it is our job
        main: Callable[..., Any] | None = getattr(module, "main", None)
        if main is None:
            if not ProgramLoop.runs and defines_alone(source):
                raise SystemExit(f"{filename} defines functions, none of them is `main`, and nothing was run")
            return None
        if ProgramLoop.runs:  # by `asyncio.run(main())`, as scripts end
            result = ProgramLoop.results.get(getattr(main, "__code__", None))
        else:
            result = main(list(args)) if _takes_arguments(main) else main()
        if inspect.isawaitable(result):
            result = loop.run_main(result)
    except SystemExit as error:
        if error.code not in (None, 0):
            raise
        return None
    return None if result is None else _as_text(result)


def _as_text(result: object) -> str:
    """Return the result of `main` as text.

    Raises:
        TypeError: the result must be awaited or iterated first.
    """
    if inspect.isawaitable(result) or hasattr(result, "__aiter__"):
        name = getattr(result, "__qualname__", type(result).__qualname__)
        if inspect.iscoroutine(result):
            result.close()  # nobody will await it
        how = "awaited: write `return await ...`" if inspect.isawaitable(result) else "iterated by `async for`"
        raise TypeError(f"main returned {name}, which was not {how}")
    return str(result)


def _takes_arguments(main: Callable[..., Any]) -> bool:
    if type(main) is types.FunctionType and not hasattr(main, "__wrapped__"):  # `signature` takes longer than the rest
        return bool(main.__code__.co_argcount or main.__code__.co_flags & inspect.CO_VARARGS)
    parameters = inspect.signature(main).parameters.values()
    return any(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL) for p in parameters)


def _raise_failures() -> None:
    """Fail the program with the failure of a queue that the program neither awaited nor reset.

    A queue whose failure the program has seen is reset here, because control takes a queue that stays poisoned for a
    failure that nobody saw.
    """
    failed = [queue for queue in channel.queues.values() if queue.failure is not None]
    for queue in failed:
        if queue.failure is not None and not queue.failure_seen:
            raise queue.failure
    for queue in failed:
        queue.reset()
