"""Typed events for a client behind the gateway: text of several choices, finish reasons, token counts, refusals.

The gateway launches an inferlet for a request of the OpenAI API, with the request in JSON as its first argument, and
makes chunks of these events. A program that uses plain `send` answers too: its text is the first choice's.

Each event is a message that begins with U+001E, followed by a JSON object.

Example:
    >>> async def main():
    ...     async with Context() as ctx:
    ...         ctx.fill("Hello,")
    ...         async for piece in ctx.generate(max_tokens=2):
    ...             reply.delta(piece)
    ...         reply.finish("length")
    ...         reply.usage(prompt_tokens=6, completion_tokens=2)
"""

from __future__ import annotations

import json
from typing import Literal

from inferlet._calls.program import send

Reason = Literal["stop", "length", "tool_calls", "content_filter"]

_MARK = "\x1e"


def delta(text: str, index: int = 0) -> None:
    """Send a piece of text of choice `index`. An empty piece is left out.

    Example:
        >>> async def main():
        ...     reply.delta("Good ")
        ...     reply.delta("morning")
    """
    if text:
        _send(type="delta", index=index, text=str(text))


def finish(reason: Reason = "stop", index: int = 0) -> None:
    """Say that choice `index` is complete, and why it ends where it does.

    Example:
        >>> async def main():
        ...     reply.finish("length")
    """
    _send(type="finish", index=index, reason=reason)


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> None:
    """Say how many tokens all choices together have taken so far.

    Args:
        prompt_tokens: tokens of the prompt, counted once however many choices share it.
        completion_tokens: tokens generated.
        cached_tokens: tokens of the prompt that weren't computed for this request.

    Example:
        >>> async def main():
        ...     reply.usage(prompt_tokens=12, completion_tokens=30)
    """
    _send(type="usage", prompt_tokens=prompt_tokens, completion_tokens=completion_tokens, cached_tokens=cached_tokens)


def refuse(message: str, *, param: str | None = None, code: str | None = None) -> None:
    """Refuse the request: the client gets status 400 if nothing else was sent before.

    Args:
        message: a sentence that says what to change.
        param: the request's field that is wrong, such as `messages[0].content`.
        code: a word for programs, such as `context_length_exceeded`.

    Example:
        >>> async def main():
        ...     reply.refuse("The prompt is empty.", param="prompt")
    """
    _send(type="refuse", message=message, param=param, code=code)


def _send(**event: object) -> None:
    send(_MARK + json.dumps(event, separators=(",", ":")))
