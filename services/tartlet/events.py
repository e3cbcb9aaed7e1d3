"""What a program tells its client, as values."""

from __future__ import annotations

from dataclasses import dataclass

from tartlet_common.errors.registry import TartletError


@dataclass(frozen=True, slots=True)
class Usage:
    """What a program used, known when it has ended."""

    sampled_tokens: int = 0
    input_tokens: int = 0  # embedded from ids
    first_token_s: float = 0.0  # from launch, or the last message before it, to the first token, 0 if there was none
    per_token_s: float = 0.0  # mean time between sampled tokens (if none: distributions) of one answer
    wall_s: float = 0.0
    commands: int = 0
    peak_pages: int = 0
    distributions: int = 0  # of next tokens that the program was given, to choose from by itself


@dataclass(frozen=True, slots=True)
class Accepted:
    """The program has an id and starts. `guest_token` admits a native guest process, else empty."""

    program_id: str
    guest_token: str = ""


@dataclass(frozen=True, slots=True)
class _Output:
    program_id: str
    offset: int  # of this event in the program's output; attach(offset) resumes from one
    data: bytes

    @property
    def text(self) -> str:
        """The bytes as UTF-8; a character that the end of an event cuts in two is replaced."""
        return self.data.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Message(_Output):
    """What the program sent with `send`."""


@dataclass(frozen=True, slots=True)
class Stdout(_Output):
    """What the program printed."""


@dataclass(frozen=True, slots=True)
class Stderr(_Output):
    """What the program wrote to its standard error."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The program's end: the last event of every program."""

    program_id: str
    offset: int
    success: bool
    result: str | None  # what `main` returned, as text; None if nothing
    error: TartletError | None  # why it failed
    usage: Usage


Event = Accepted | Message | Stdout | Stderr | Ended
