"""An inferlet's messages as typed events of a reply.

A message that begins with U+001E is a JSON object with a `type`, as the SDK's `inferlet.reply` sends them. Any other
message is text of the reply's first choice. So a program that knows nothing of the gateway still answers.
"""

from __future__ import annotations

import codecs
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

import msgspec

MARK: Final = b"\x1e"
"""The first byte of a typed event's message (the record separator of JSON text sequences, RFC 7464)."""
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 53) - 1)]
_REASONS: Final = frozenset({"stop", "length", "tool_calls", "content_filter"})


class TokenLogprob(msgspec.Struct, frozen=True):
    """One token with its log-probability, and those of the tokens that were likeliest in its place."""

    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list[TokenLogprob] = []  # msgspec copies the default


class Delta(NamedTuple):
    """A piece of text of one choice, with the log-probabilities of its tokens if they were asked for."""

    choice: int
    text: str
    logprobs: tuple[TokenLogprob, ...] | None = None


class Reasoned(NamedTuple):
    """A piece of the reasoning before one choice's text."""

    choice: int
    text: str


class Called(NamedTuple):
    """A whole tool call of one choice; `arguments` is a JSON object as text."""

    choice: int
    name: str
    arguments: str


class Finished(NamedTuple):
    """A choice is complete; `reason` is OpenAI's finish reason, `stop_text` the stop string that ended the choice."""

    choice: int
    reason: str
    stop_text: str | None = None


class Counted(NamedTuple):
    """Token counts so far, of all choices together."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class Refused(NamedTuple):
    """The inferlet refuses the request: the client is at fault."""

    message: str
    param: str | None = None
    code: str | None = None


Said: TypeAlias = "Delta | Reasoned | Called"
Event: TypeAlias = "Said | Finished | Counted | Refused"


def counting(usage: Counted, event: Event) -> Counted:
    """Return the token counts behind an event: what the inferlet tells, and between that a token for each part sent.

    A part with log-probabilities has as many tokens as these. Parts may have more tokens than are counted here, so the
    counts are a lower bound until the inferlet tells its own.

    Example:
        >>> usage = counting(Counted(5), Delta(0, "Hi"))
        >>> usage.completion_tokens, counting(usage, Counted(5, 7)).completion_tokens
        (1, 7)
    """
    match event:
        case Counted():
            return event
        case Delta(text="", logprobs=None) | Reasoned(text="") | Finished() | Refused():
            return usage
        case Delta():
            return usage._replace(completion_tokens=usage.completion_tokens + len(event.logprobs or " "))
        case Reasoned():
            tokens, reasoning = usage.completion_tokens + 1, usage.reasoning_tokens + 1
            return usage._replace(completion_tokens=tokens, reasoning_tokens=reasoning)
        case Called():
            return usage._replace(completion_tokens=usage.completion_tokens + 1)


class BadEventError(Exception):
    """A message begins with the mark and is no event: the inferlet has a bug."""


class _Wire(msgspec.Struct):
    """All fields that an event may have."""

    type: str
    index: int = 0
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] | None = None
    reason: str = "stop"
    stop_text: str | None = None
    prompt_tokens: _Count = 0
    completion_tokens: _Count = 0
    cached_tokens: _Count = 0
    reasoning_tokens: _Count = 0
    name: str = ""
    arguments: str = "{}"
    message: str = ""
    param: str | None = None
    code: str | None = None


_decoder: Final = msgspec.json.Decoder(_Wire)


class EventReader:
    r"""Turns messages into events; characters that messages cut in two are joined.

    Example:
        >>> reader = EventReader()
        >>> reader.read(b"caf\xc3"), reader.read(b"\xa9")
        (Delta(choice=0, text='caf', logprobs=None), Delta(choice=0, text='é', logprobs=None))
        >>> reader.read(b'\x1e{"type": "finish", "index": 1, "reason": "length"}')
        Finished(choice=1, reason='length', stop_text=None)
    """

    def __init__(self) -> None:
        self._utf8: Any = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def read(self, message: bytes) -> Event:
        """Return the event of one message.

        Raises:
            BadEventError: the message begins with the mark and is no event.
        """
        if not message.startswith(MARK):
            return Delta(0, self._utf8.decode(message))
        try:
            return _event(_decoder.decode(message[1:]))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
            raise BadEventError(str(e)) from e

    def rest(self) -> Delta:
        """Return what is left of a character that the last message cut off."""
        return Delta(0, self._utf8.decode(b"", final=True))


def _event(wire: _Wire) -> Event:
    if wire.index < 0:
        raise BadEventError(f"index {wire.index} is negative")
    match wire.type:
        case "delta":
            return Delta(wire.index, wire.text, wire.logprobs)
        case "reasoning":
            return Reasoned(wire.index, wire.text)
        case "tool_call" if wire.name:
            return Called(wire.index, wire.name, _object(wire.arguments))
        case "finish" if wire.reason in _REASONS:
            return Finished(wire.index, wire.reason, wire.stop_text)
        case "usage":
            return Counted(wire.prompt_tokens, wire.completion_tokens, wire.cached_tokens, wire.reasoning_tokens)
        case "refuse":
            return Refused(wire.message, wire.param, wire.code)
        case _:
            raise BadEventError(f"unknown event {wire.type!r} or finish reason {wire.reason!r}")


def _object(text: str) -> str:
    """Return the arguments of a call, checked: clients parse them as a JSON object."""
    try:
        if isinstance(msgspec.json.decode(text), dict):
            return text
    except (msgspec.DecodeError, RecursionError):
        pass
    raise BadEventError("a tool call's arguments are no JSON object")
