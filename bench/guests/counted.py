"""Runs another program, which is beside this file as `technique`; counts its calls and the tokens that it generates.

Tells a JSON message at the end: the number of calls by operation, and the number of tokens.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import technique  # type: ignore[import-not-found]

from inferlet import Context, send
from inferlet._contexts.generation import Generation
from inferlet._wire.channel import Channel

calls: Counter[int] = Counter()
generated: Counter[str] = Counter()


def counting_calls(record: Callable[..., int]) -> Callable[..., int]:
    """Count an operation, then record it."""

    def counted(self: Channel, op: int, *fields: Any, **named: Any) -> int:
        calls[op] += 1
        return record(self, op, *fields, **named)

    return counted


def counting_tokens(accept: Callable[..., Any], size: Callable[[Any], int]) -> Callable[..., Any]:
    """Count the tokens that a context takes."""

    def counted(*args: Any, **named: Any) -> Any:
        taken = accept(*args, **named)
        generated["tokens"] += size(taken)
        return taken

    return counted


async def main() -> None:
    """Run the technique, and tell what it called."""
    changed: Any = Channel
    changed.record = counting_calls(Channel.record)
    changed = Generation
    changed._accept = counting_tokens(Generation._accept, lambda _: 1)  # noqa: SLF001 - counts every token
    changed = Context
    changed.accept = counting_tokens(Context.accept, len)
    given = (sys.argv[1:],) if inspect.signature(technique.main).parameters else ()
    await technique.main(*given)
    told = dict(calls)
    send(json.dumps({"calls": told, "tokens": generated["tokens"]}))
