"""Limits of one program: the client's wishes, the server's defaults, and never above the server's bounds."""

from __future__ import annotations

from dataclasses import dataclass

from tartlet_common.config.settings import RuntimeSettings
from tartlet_common.errors.registry import InvalidArgument
from tartlet_protos import common_pb2

MAX_SUBMISSION_BYTES = 4 << 20
"""One submission of a guest; also keeps one program's share of a frame below gRPC's message limit."""

MAX_ARGS_BYTES = 1 << 20
MAX_MESSAGE_BYTES = 2 << 20
MAX_NAME_BYTES = 1024
MAX_INBOX_BYTES = 64 << 20
"""Answers that a program has asked for and not taken, and, apart from them, messages it has not received."""
MAX_DEFERRED = 64
"""Answers of one program that the runtime works on beside the loop."""
MAX_DEFERRED_BYTES = 4 << 20
"""And what they are worked out of; one alone may be larger."""


MAX_CHILDREN = 256
"""Programs that a program may start in one run, with those that its children may start."""


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """What one program may use."""

    memory_bytes: int
    reserved_bytes: int  # of them, what the launch takes; all where it names a limit
    cpu_slice_s: float  # longest computation without a wait
    pages: int  # 0: the engine's all
    commands_in_flight: int
    source_bytes: int
    output_bytes: int  # unread
    inbox_messages: int
    journal_bytes: int
    deadline_s: float  # 0: none
    children: int = 0  # programs that it and its children may start in one run


def default_limits(settings: RuntimeSettings) -> ProgramLimits:
    """Return the limits of a program whose launch names none; they are also the most a launch may ask for."""
    return ProgramLimits(
        memory_bytes=settings.memory_bytes,
        reserved_bytes=min(settings.program_reserved_bytes, settings.memory_bytes),
        cpu_slice_s=settings.cpu_slice_s,
        pages=0,
        commands_in_flight=settings.commands_in_flight,
        source_bytes=settings.source_bytes,
        output_bytes=settings.output_bytes,
        inbox_messages=settings.inbox_messages,
        journal_bytes=settings.journal_bytes,
        deadline_s=0.0,
        children=MAX_CHILDREN,
    )


PYTHON_BYTES = 24 << 20
"""Memory that the Python guest has when it starts, in whole MiB: with less no Python program runs."""


def resolve(asked: common_pb2.Limits, server: ProgramLimits) -> ProgramLimits:
    """Return the limits a launch gets: what it asked for, capped by the server's.

    Raises:
        InvalidArgument: a limit isn't a finite number of at least 0.
    """
    for name in ("cpu_slice_s", "deadline_s"):
        value = getattr(asked, name)
        if not 0 <= value < float("inf"):
            raise InvalidArgument(argument=f"limits.{name}", detail=f"{value} is not a number of seconds")
    memory_bytes = _capped(asked.memory_bytes, server.memory_bytes)
    return ProgramLimits(
        memory_bytes=memory_bytes,
        reserved_bytes=memory_bytes if asked.memory_bytes else server.reserved_bytes,
        cpu_slice_s=min(asked.cpu_slice_s or server.cpu_slice_s, server.cpu_slice_s),
        pages=asked.pages,
        commands_in_flight=_capped(asked.commands_in_flight, server.commands_in_flight),
        source_bytes=_capped(asked.source_bytes, server.source_bytes),
        output_bytes=_capped(asked.output_bytes, server.output_bytes),
        inbox_messages=server.inbox_messages,
        journal_bytes=_capped(asked.journal_bytes, server.journal_bytes),
        deadline_s=asked.deadline_s,
        children=server.children,
    )


def _capped(asked: int, most: int) -> int:
    return min(asked, most) if asked else most
