"""What a run's program has put out, and how it ended. Pure."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from typing import Final

from tartlet_common.errors.registry import TartletError
from tartlet_common.pauses import Pause
from tartlet_operator.api.inferlet_run import OUTPUT_BYTES, Tokens

_SHORT: Final = b'\n\r\t"\\'
"""Characters for which JSON takes two bytes."""
_LONG: Final = bytes(byte for byte in (*range(32), *b"<>&") if byte not in _SHORT)
"""Characters for which JSON takes six bytes, `\\u` and four digits; the API server's JSON adds `<`, `>` and `&`."""


@dataclass(frozen=True, slots=True)
class Output:
    """The end of a program's output, as far as it is kept."""

    text: str = ""
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """What a listing has shown of a running program."""

    tokens: Tokens = field(default_factory=Tokens)
    recovering: bool = False  # the program stands still until a part of the release is back
    paused_s: float = 0.0
    pauses: tuple[Pause, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended."""

    success: bool
    output: Output = field(default_factory=Output)
    result: str | None = None
    error: TartletError | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    stderr: str = ""

    def at_least(self, tokens: Tokens) -> Outcome:
        """Return the outcome with the tokens that were seen while the program ran, if it tells of fewer."""
        return replace(
            self,
            input_tokens=max(self.input_tokens, tokens.input),
            output_tokens=max(self.output_tokens, tokens.output),
        )


def json_bytes(data: bytes) -> int:
    r"""Return the bytes that a text takes in the API server's JSON.

    Example:
        >>> [json_bytes(text.encode()) for text in ("abc", "é", "a\n", "\x1b", "<", "\u2028")]
        [3, 2, 3, 6, 6, 6]
    """
    short, long = (len(data) - len(data.translate(None, escaped)) for escaped in (_SHORT, _LONG))
    return len(data) + short + 5 * long + 3 * (data.count(b"\xe2\x80\xa8") + data.count(b"\xe2\x80\xa9"))


def tail(data: bytes, truncated: bool = False, limit: int = OUTPUT_BYTES) -> Output:  # noqa: FBT001, FBT002 - a flag of data
    r"""Return the end of a program's output, of at most `limit` bytes and twice as many in JSON.

    Half a character at the start is dropped.

    Example:
        >>> tail("añb".encode(), limit=2)
        Output(text='b', truncated=True)
        >>> tail(bytes([0xFF, 0xFF]), limit=3)
        Output(text='�', truncated=True)
        >>> tail(b"\x1b\x1b\x1b", limit=6)
        Output(text='\x1b\x1b', truncated=True)
    """
    kept, most = data[-limit:], 2 * limit
    if json_bytes(kept) > most:
        kept = kept[bisect_left(range(len(kept)), -most, key=lambda start: -json_bytes(kept[start:])) :]
    if len(kept) < len(data):
        truncated = True
        kept = kept[next((i for i, byte in enumerate(kept[:4]) if byte & 0xC0 != 0x80), 0) :]
    text = kept.decode(errors="replace")  # bytes that are no text grow in this
    grown = text.encode()
    return Output(text, truncated) if grown == kept else tail(grown, truncated, limit)
