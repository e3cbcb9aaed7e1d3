"""Text to tokens and back, chats to text, and the bytes of tokens.

The runtime answers these calls, without control or an engine; an answer takes some tens of microseconds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence

from inferlet._generated import abi
from inferlet._models.models import chosen
from inferlet._models.vocab import Words
from inferlet._values import arguments, refusals
from inferlet._values.types import Message, Model, Tool
from inferlet._wire import answers
from inferlet._wire.channel import channel, u32


def tokenize_with(model: Model, text: str, *, special: bool = False) -> asyncio.Future[list[int]]:
    """Token ids of `text`; `special` adds what the model's tokenizer puts around a text (such as BOS)."""
    payload = refusals.utf8("tokenize", "text", text)
    return channel.call(answers.tokens, abi.OP_TOKENIZE, 0, model.index, int(special), 0, payload)


def detokenize_with(model: Model, tokens: int | Sequence[int]) -> asyncio.Future[str]:
    """The text of `tokens`; bytes that are no UTF-8 become U+FFFD."""
    return channel.call(answers.text, abi.OP_DETOKENIZE, 0, model.index, payload=_token_list("detokenize", tokens))


def detokenize_bytes(tokens: int | Sequence[int], model: Model | None = None) -> asyncio.Future[bytes]:
    r"""The bytes of `tokens`, which may end inside a character.

    Example:
        >>> async def main():
        ...     print(await detokenize_bytes([195]))
        b'\xc3'
    """
    number = chosen("detokenize_bytes", model).index
    return channel.call(answers.raw, abi.OP_DETOKENIZE, 0, number, payload=_token_list("detokenize_bytes", tokens))


def get_vocabs(model: Model | None = None, *, first: int = 0, count: int = 0) -> asyncio.Future[list[bytes]]:
    """The bytes of each token, from token `first` on: `count` of them, or all (0).

    Example:
        >>> async def main():
        ...     print(await get_vocabs(first=72, count=2))
        [b'H', b'I']
    """
    number = chosen("get_vocabs", model).index
    return channel.call(_decode_vocabs, abi.OP_GET_VOCABS, 0, number, first, count)


def format_chat(
    messages: Sequence[Message],
    *,
    tools: Sequence[Tool] | None = None,
    variables: Mapping[str, object] | None = None,
    add_generation_prompt: bool = True,
    model: Model | None = None,
) -> asyncio.Future[str]:
    """Chat messages as the text that the model's template makes of them.

    Args:
        messages: in the form of OpenAI's; a tool call's `arguments` as an object, unless the template wants text.
        tools: those that the model may call.
        variables: what else the template knows, such as `{"enable_thinking": False}`.
        add_generation_prompt: end with what begins an answer.
        model: the default one if left out.

    Raises:
        InvalidArgument: the template refuses the messages, or writes nothing of some or of the tools; a message is
            without role or content, or a role looks misspelt.

    Example:
        >>> async def main():
        ...     print(await format_chat([{"role": "user", "content": "Hi"}]))
        <user>Hi</user><assistant>
    """
    listed = arguments.messages("format_chat", messages)
    wanted = {} if variables is None else arguments.variables("format_chat", variables)
    wanted = wanted | {"messages": listed, "add_generation_prompt": add_generation_prompt}
    if tools is not None:
        wanted["tools"] = arguments.tools("format_chat", tools)
    body = json.dumps(wanted).encode()
    return channel.call(answers.text, abi.OP_FORMAT_CHAT, 0, chosen("format_chat", model).index, payload=body)


def _token_list(call: str, tokens: int | Sequence[int]) -> bytes:
    try:
        return u32((tokens,) if isinstance(tokens, int) else tokens)
    except (TypeError, OverflowError):
        raise refusals.tokens(call, tokens) from None


def _decode_vocabs(_a: int, _b: int, _c: int, payload: bytes) -> list[bytes]:
    return Words(payload).all()
