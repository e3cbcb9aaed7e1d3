"""Typed events for a client behind the gateway: text, reasoning, tool calls, finish reasons, token counts, refusals.

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
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, Literal

from inferlet._calls.program import receive_bytes, send
from inferlet._contexts.pieces import Piece
from inferlet.context import Context

Reason = Literal["stop", "length", "tool_calls", "content_filter"]

TokenLogprob = dict[str, Any]
"""A token as the OpenAI API tells it: `token`, `logprob`, `bytes` and `top_logprobs`."""

PARTS = "request_parts"
"""The only key of an argument that stands for so many messages, which together are the request."""

_MARK = "\x1e"


async def request(args: Sequence[str]) -> dict[str, Any]:
    """Return the client's request: the first argument, or messages where the request is too long for an argument.

    Args:
        args: the program's arguments.

    Example:
        >>> async def main():
        ...     print(await reply.request(['{"max_tokens": 3}']))
        {'max_tokens': 3}
    """
    given: dict[str, Any] = json.loads(args[0])
    if given.keys() != {PARTS}:
        return given
    parts = [await receive_bytes() for _ in range(given[PARTS])]
    whole: dict[str, Any] = json.loads(b"".join(parts))
    return whole


def context(request: Mapping[str, Any]) -> Context:
    """Return a context for a request: with the LoRA adapter of a model named `MODEL:ADAPTER`, and the request's seed.

    Args:
        request: what `reply.request` returned.

    Raises:
        InvalidArgument: the model has no such adapter.

    Example:
        >>> async def main():
        ...     async with reply.context({"seed": 7}) as ctx:
        ...         ctx.fill("Hello,")
        ...         print(len(await ctx.generate_until(max_tokens=2)) > 0)
        True
    """
    seed = request.get("seed")
    return Context(seed=None if seed is None else seed % (1 << 64), adapter=request.get("adapter"))


def delta(text: str, index: int = 0, *, logprobs: Sequence[TokenLogprob] | None = None) -> None:
    """Send a piece of text of choice `index`. An empty piece without log-probabilities is left out.

    Args:
        text: the piece.
        index: the choice, from 0.
        logprobs: the tokens of the piece, if the client asked for log-probabilities; `token_logprob` makes them.

    Example:
        >>> async def main():
        ...     reply.delta("Good ")
        ...     reply.delta("morning")
    """
    if logprobs:
        _send(type="delta", index=index, text=str(text), logprobs=list(logprobs))
    elif text:  # once for each token: a template takes a third of the encoder's time
        send(f'{_MARK}{{"type":"delta","index":{index:d},"text":{quoted(text)}}}')


def token_logprob(piece: Piece) -> TokenLogprob:
    """Return the token of a piece of `Context.generate` with its log-probabilities, in the form of the OpenAI API.

    Example:
        >>> async def main():
        ...     async with Context() as ctx:
        ...         ctx.fill("Hello,")
        ...         async for piece in ctx.generate(max_tokens=2, logprobs=1):
        ...             told = reply.token_logprob(piece)
        ...             reply.delta(piece, logprobs=[told])
        ...             print(len(told["top_logprobs"]))
        1
        1
    """
    told = _entry(piece.token_bytes.get(piece.token, b""), piece.logprob)
    told["top_logprobs"] = [_entry(piece.token_bytes.get(t, b""), value) for t, value in piece.logprobs.items()]
    return told


def _entry(raw: bytes, logprob: float) -> TokenLogprob:
    """JSON has no infinity: a token that can't come has the log-probability -9999, as other servers tell it."""
    return {"token": raw.decode(errors="replace"), "logprob": max(logprob, -9999.0), "bytes": list(raw)}


def reasoning(text: str, index: int = 0) -> None:
    """Send a piece of the reasoning that comes before choice `index`; clients show it apart from the text.

    Example:
        >>> async def main():
        ...     reply.reasoning("The user greets.")
        ...     reply.delta("Hello!")
    """
    if text:
        _send(type="reasoning", index=index, text=str(text))


def tool_call(name: str, arguments: str = "{}", index: int = 0) -> None:
    """Send a whole tool call of choice `index`. A choice with calls finishes with the reason "tool_calls".

    Args:
        name: the tool's name.
        arguments: the arguments, a JSON object as text.
        index: the choice, from 0.

    Example:
        >>> async def main():
        ...     reply.tool_call("weather", '{"city": "Oslo"}')
        ...     reply.finish("tool_calls")
    """
    _send(type="tool_call", index=index, name=name, arguments=arguments)


def finish(reason: Reason = "stop", index: int = 0, *, stop_text: str | None = None) -> None:
    """Say that choice `index` is complete, and why it ends where it does.

    Args:
        reason: why.
        index: the choice, from 0.
        stop_text: the stop string that ended the choice, as `Generation.stop_text` has it. The Messages API tells it.

    Example:
        >>> async def main():
        ...     reply.finish("length")
        ...     reply.finish("stop", 1, stop_text="END")
    """
    told = {} if stop_text is None else {"stop_text": stop_text}
    _send(type="finish", index=index, reason=reason, **told)


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0, reasoning_tokens: int = 0) -> None:
    """Say how many tokens all choices together have taken so far.

    Args:
        prompt_tokens: tokens of the prompt, counted once however many choices share it.
        completion_tokens: tokens generated.
        cached_tokens: tokens of the prompt that weren't computed for this request.
        reasoning_tokens: those of the tokens generated that are reasoning.

    Example:
        >>> async def main():
        ...     reply.usage(prompt_tokens=12, completion_tokens=30)
    """
    _send(
        type="usage",
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        cached_tokens=cached_tokens,
        reasoning_tokens=reasoning_tokens,
    )


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


_encode = json.JSONEncoder(separators=(",", ":")).encode


def _send(**event: object) -> None:
    send(_MARK + _encode(event))
