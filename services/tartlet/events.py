"""The events that a client receives from a program."""

from __future__ import annotations

from dataclasses import dataclass

from tartlet_common.errors.registry import TartletError


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that a program used, known at its end."""

    sampled_tokens: int = 0
    input_tokens: int = 0  # tokens that the program embedded by id
    first_token_s: float = 0.0  # from the launch, or the last message before it, to the first token; 0: no token
    per_token_s: float = 0.0  # mean time between sampled tokens (if none: distributions) of one answer
    wall_s: float = 0.0
    commands: int = 0
    peak_pages: int = 0
    distributions: int = 0  # distributions of the next token that the program received, to choose by itself


@dataclass(frozen=True, slots=True)
class Accepted:
    """The program has an id and starts. `guest_token` admits the process of a native program; else it is empty."""

    program_id: str
    guest_token: str = ""


@dataclass(frozen=True, slots=True)
class _Output:
    program_id: str
    offset: int  # number of this event in the program's output; attach(offset) resumes there
    data: bytes

    @property
    def text(self) -> str:
        """The bytes as UTF-8; a character that the end of an event cuts in two is replaced."""
        return self.data.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Message(_Output):
    """A message that the program sent with `send`."""


@dataclass(frozen=True, slots=True)
class Stdout(_Output):
    """Text that the program printed."""


@dataclass(frozen=True, slots=True)
class Stderr(_Output):
    """Text that the program wrote to its standard error."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The program's end: the last event of every program."""

    program_id: str
    offset: int
    success: bool
    result: str | None  # the value that `main` returned, as text; None if it returned none
    error: TartletError | None  # why the program failed; None if it succeeded
    usage: Usage


Event = Accepted | Message | Stdout | Stderr | Ended
