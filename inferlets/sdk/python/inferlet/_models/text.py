"""Text to tokens and back, chats to text, and the bytes of tokens.

The runtime answers these calls, without control or an engine; an answer takes some tens of microseconds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence

from inferlet._generated import packers
from inferlet._models.models import chosen
from inferlet._models.vocab import Words
from inferlet._values import arguments, refusals
from inferlet._values.types import ChatPrompt, Message, Model, Tool
from inferlet._wire import answers
from inferlet._wire.channel import channel


def tokenize_with(model: Model, text: str, *, special: bool = False) -> asyncio.Future[list[int]]:
    """Ask for the token ids of `text`. `special` adds the tokenizer's special tokens, such as BOS."""
    payload = refusals.utf8("tokenize", "text", text)
    return channel.call(answers.tokens, *packers.tokenize(model.index, special, payload))


def detokenize_with(model: Model, tokens: int | Sequence[int]) -> asyncio.Future[str]:
    """Ask for the text of `tokens`. Bytes that are no UTF-8 become U+FFFD."""
    return channel.call(answers.text, *_detokenizing("detokenize", model.index, tokens))


def detokenize_bytes(tokens: int | Sequence[int], model: Model | None = None) -> asyncio.Future[bytes]:
    r"""Ask for the bytes of `tokens`, which may end in the middle of a character.

    Args:
        tokens: one token id or several.
        model: whose tokens they are; None for the program's default model.

    Example:
        >>> async def main():
        ...     print(await detokenize_bytes([195]))
        b'\xc3'
    """
    number = chosen("detokenize_bytes", model).index
    return channel.call(answers.raw, *_detokenizing("detokenize_bytes", number, tokens))


def get_vocabs(model: Model | None = None, *, first: int = 0, count: int = 0) -> asyncio.Future[list[bytes]]:
    """Ask for the bytes of each token of a range.

    Args:
        model: whose tokens they are; None for the program's default model.
        first: the first token of the range.
        count: the number of tokens; 0 for all that follow.

    Example:
        >>> async def main():
        ...     print(await get_vocabs(first=72, count=2))
        [b'H', b'I']
    """
    number = chosen("get_vocabs", model).index
    names = ("get_vocabs", "model", "first", "count")
    return channel.call(_decode_vocabs, *packers.get_vocabs(number, first, count), names=names)


def format_chat(
    messages: Sequence[Message],
    *,
    tools: Sequence[Tool] | None = None,
    variables: Mapping[str, object] | None = None,
    add_generation_prompt: bool = True,
    model: Model | None = None,
) -> asyncio.Future[str]:
    """Ask for the text that the model's chat template makes of messages.

    Args:
        messages: messages in the form of OpenAI's API. The `arguments` of a tool call are an object, unless the
            template expects text.
        tools: the tools that the model may call.
        variables: further variables of the template, such as `{"enable_thinking": False}`.
        add_generation_prompt: whether the text ends with the beginning of an answer.
        model: the model whose template is used; None for the program's default model.

    Raises:
        InvalidArgument: the template refuses the messages, or leaves out a message or the tools; a message has no role
            or no content; a role looks misspelt.

    Example:
        >>> async def main():
        ...     print(await format_chat([{"role": "user", "content": "Hi"}]))
        <user>Hi</user><assistant>
    """
    body = _chat("format_chat", messages, tools, variables, add_generation_prompt)
    return channel.call(answers.text, *packers.format_chat(chosen("format_chat", model).index, False, body))


def tokenize_chat(
    messages: Sequence[Message],
    *,
    tools: Sequence[Tool] | None = None,
    variables: Mapping[str, object] | None = None,
    add_generation_prompt: bool = True,
    model: Model | None = None,
) -> asyncio.Future[ChatPrompt]:
    """Ask for the text that the model's chat template makes of messages, and for its tokens, with one call.

    The arguments and errors are those of `format_chat`. The tokens are those of `tokenize(text)`.

    Example:
        >>> async def main():
        ...     prompt = await tokenize_chat([{"role": "user", "content": "Hi"}])
        ...     print(prompt.text, prompt.tokens == await tokenize(prompt.text))
        <user>Hi</user><assistant> True
    """
    body = _chat("tokenize_chat", messages, tools, variables, add_generation_prompt)
    return channel.call(answers.chat, *packers.format_chat(chosen("tokenize_chat", model).index, True, body))


def _chat(
    call: str,
    messages: Sequence[Message],
    tools: Sequence[Tool] | None,
    variables: Mapping[str, object] | None,
    add_generation_prompt: bool,  # noqa: FBT001 - of this module only
) -> bytes:
    """Return the JSON of a FORMAT_CHAT."""
    listed = arguments.messages(call, messages)
    wanted = {} if variables is None else arguments.variables(call, variables)
    wanted = wanted | {"messages": listed, "add_generation_prompt": add_generation_prompt}
    if tools is not None:
        wanted["tools"] = arguments.tools(call, tools)
    return json.dumps(wanted).encode()


def _detokenizing(call: str, model: int, tokens: int | Sequence[int]) -> packers.Fields:
    try:
        return packers.detokenize(model, False, (tokens,) if isinstance(tokens, int) else tokens)
    except (TypeError, OverflowError):
        raise refusals.tokens(call, tokens) from None


def _decode_vocabs(_a: int, _b: int, _c: int, payload: bytes) -> list[bytes]:
    return Words(payload).all()
