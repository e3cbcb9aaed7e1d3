"""Text of a context on its way to tokens: plain text, a chat, or messages that continue a chat."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from contextlib import suppress
from typing import Any

from inferlet._models.text import format_chat, tokenize_chat, tokenize_with
from inferlet._values.types import ChatPrompt, Message, Model
from inferlet._wire.channel import channel
from inferlet.errors import InvalidArgument, TartletError

Steps = Generator[asyncio.Future[Any], Any, list[int]]
"""A generator that yields futures of the runtime's answers, is sent the answers, and returns tokens."""

_ANSWER = "(an answer)"
_TURN: list[Message] = [{"role": "user", "content": "(a question)"}, {"role": "assistant", "content": _ANSWER}]


class Text:
    """Tokens of a text. The runtime is asked the first question at once, and the others when the tokens are wanted."""

    __slots__ = ("_awaited", "_error", "_steps", "_tokens")

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._awaited = next(steps)
        self._tokens: list[int] | None = None
        self._error: TartletError | None = None

    def _advance(self) -> bool:
        """Go on as far as answers have come; return whether the tokens are known."""
        while self._tokens is None and self._error is None:
            awaited = self._awaited
            if not awaited.done():
                return False
            try:
                error = awaited.exception()
                self._awaited = self._steps.send(awaited.result()) if error is None else self._steps.throw(error)
            except StopIteration as end:
                self._tokens = end.value
            except TartletError as e:
                self._error = e
        return True

    def _result(self) -> list[int]:
        if self._error is not None:
            raise self._error
        assert self._tokens is not None
        return self._tokens

    async def tokens(self) -> list[int]:
        """Wait for the tokens. If the caller is cancelled, the next caller still gets them."""
        while not self._advance():
            with suppress(TartletError):  # `_advance` takes care of it
                await asyncio.shield(self._awaited)
        return self._result()

    def tokens_now(self) -> list[int]:
        """Wait for the tokens without running other tasks."""
        while not self._advance():
            channel.wait()
        return self._result()


class Chat(Text):
    """Chat messages that follow the tokens `before` of the context.

    Args:
        model: whose template and tokenizer are used.
        messages: the messages.
        before: the tokens of the context; none if `begins`.
        form: further arguments of `format_chat`.
        begins: whether the context begins with these messages.
        answering: whether the tokens end with an answer to earlier messages, and perhaps with a stop token.
    """

    __slots__ = ("answering", "begins", "messages")

    def __init__(
        self,
        model: Model,
        messages: Sequence[Message],
        before: Sequence[int],
        *,
        form: dict[str, Any],
        begins: bool,
        answering: bool,
    ) -> None:
        self.messages, self.begins, self.answering = messages, begins, answering
        super().__init__(
            _beginning(model, messages, form) if begins else _next_turn(model, messages, form, before, answering)
        )


def plain(model: Model, text: str, special: bool) -> Steps:  # noqa: FBT001 - of this package only
    """Return the tokens of a text."""
    tokens: list[int] = yield tokenize_with(model, text, special=special)
    return tokens


def _beginning(model: Model, messages: Sequence[Message], form: dict[str, Any]) -> Steps:
    """Return the tokens of a chat that begins a context."""
    prompt: ChatPrompt = yield tokenize_chat(messages, model=model, **form)
    return prompt.tokens


def _next_turn(
    model: Model,
    messages: Sequence[Message],
    form: dict[str, Any],
    before: Sequence[int],
    answering: bool,  # noqa: FBT001
) -> Steps:
    """Return the tokens that the template writes for `messages` after an answer, without a BOS or a system prompt.

    The previous answer is closed as the template closes answers, without the part that a stop token has closed.
    """
    asked = [
        format_chat(_TURN, model=model, **form | {"add_generation_prompt": False}),
        format_chat([*_TURN, *messages], model=model, **form),
    ]
    closing = ""
    try:
        closing = (yield asked[0]).partition(_ANSWER)[2]
        rest = (yield asked[1]).partition(_ANSWER)[2]
        if not (rest and rest.startswith(closing)):
            raise InvalidArgument(argument="messages", detail="the template writes an answer differently in a dialogue")
        tokens: list[int] = yield tokenize_with(model, rest.removeprefix(closing))
    except InvalidArgument:  # the template refuses such a dialogue: write a new chat, without its BOS
        tokens = yield from _beginning(model, messages, form | {"tools": None})
        if tokens and tokens[0] == model.bos_token:
            tokens = tokens[1:]
    if not (answering and closing):
        return tokens
    end: list[int] = yield tokenize_with(model, closing)
    if before and before[-1] in model.stop_tokens and before[-1] in end:
        end = end[end.index(before[-1]) + 1 :]
    return end + tokens
