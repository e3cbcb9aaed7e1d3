"""Calls that take no turn in a queue: arguments, messages, models, text (the paper's core-runtime and Tokenize traits).

The runtime answers them, without control or an engine; an answer takes some tens of microseconds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from inferlet import _abi as abi
from inferlet import _arguments, _refusals
from inferlet._channel import channel, from_u32, u32
from inferlet._ids import ids
from inferlet._queue import Queue
from inferlet._receiving import Receiving
from inferlet._types import Message, Model, Tool, Usage
from inferlet._vocab import Words

__all__ = [
    "available_models",
    "available_traits",
    "create_queue",
    "detokenize_bytes",
    "format_chat",
    "get_arg",
    "get_kv_page_size",
    "get_model",
    "get_version",
    "get_vocabs",
    "receive",
    "receive_bytes",
    "send",
    "usage",
]

VERSION = "0.1.0"


class _State:
    """What a program has learned of its surroundings."""

    __slots__ = ("args", "default_queue", "inbox", "model", "models", "spare_queues")

    def __init__(self) -> None:
        self.args: list[str] = []
        self.model: Model | None = None
        self.models: dict[str, Model] = {}
        self.default_queue: Queue | None = None
        self.spare_queues: dict[int, list[Queue]] = {}  # of closed contexts, by model
        self.inbox = Receiving()


state = _State()


def reset(args: Sequence[str]) -> None:
    """Start afresh for a program with these arguments."""
    state.__init__()  # type: ignore[misc]
    state.args = list(args)
    ids.__init__()  # type: ignore[misc]


def get_version() -> str:
    """The SDK's version.

    Example:
        >>> get_version()
        '0.1.0'
    """
    return VERSION


def get_arg() -> list[str]:
    """The arguments that the program was launched with.

    Example:
        >>> async def main():
        ...     print(get_arg() or "none given")
        none given
    """
    return list(state.args)


def send(message: str | bytes) -> None:
    """Send a message to the client that launched the program.

    Raises:
        TypeError: it is neither text nor bytes.
        InvalidArgument: its text has half a character, as JSON can name one.

    A message of more than 2 MiB ends the program in FrameTooLarge.

    Example:
        >>> async def main():
        ...     send("half done")
        ...     send("done".encode("utf-16"))  # bytes arrive as they are
    """
    if isinstance(message, str):
        payload = _refusals.utf8("send", "message", message)
    else:
        try:
            payload = bytes(memoryview(message))
        except TypeError:
            told = f"send takes a str or bytes, not {type(message).__name__}: str() or json.dumps() makes text of it"
            raise TypeError(told) from None
    if channel.before_submit is not None:
        channel.before_submit()  # printed text and messages stay in order
    channel.record(abi.OP_SEND, payload=payload)


def receive() -> asyncio.Future[str]:
    """The next message from the client, as text.

    Example:
        >>> async def main():
        ...     try:
        ...         async with asyncio.timeout(0.01):  # without one, it waits for ever
        ...             print(await receive())
        ...     except TimeoutError:
        ...         print("nobody said anything")
        nobody said anything
    """
    return state.inbox.next(_decode_text)


def receive_bytes() -> asyncio.Future[bytes]:
    """The next message from the client, as it was sent.

    Example:
        >>> async def main():
        ...     picture = asyncio.ensure_future(receive_bytes())  # it may come while the program does something else
        ...     await synchronize()
        ...     print(picture.done())
        False
    """
    return state.inbox.next(_decode_bytes)


# ---- models ---------------------------------------------------------------------------------------------------------


def available_models() -> asyncio.Future[list[str]]:
    """Names of the models that the host serves.

    Example:
        >>> async def main():
        ...     print(await available_models())
        ['mini']
    """
    return channel.call(_decode_json, abi.OP_AVAILABLE_MODELS)


def get_model(name: str = "") -> asyncio.Future[Model]:
    """The model of that name; without one, the program's default.

    Example:
        >>> async def main():
        ...     model = await get_model()
        ...     print(model.page_size > 0)
        True
    """
    _arguments.text("get_model", name)
    return channel.call(_decode_model, abi.OP_GET_MODEL, payload=name.encode())


def default_model() -> Model:
    """The program's default model, asked for once."""
    if state.model is None:
        state.model = channel.result(get_model())
    return state.model


def _chosen(call: str, model: Any) -> Model:
    """The model that a call was given, or the default."""
    if model is None:
        return default_model()
    if not isinstance(model, Model):
        name = repr(model) if isinstance(model, str) else "name"
        told = f"it takes a model, not {_arguments.shown(model)}: `await get_model({name})` gives one"
        raise _refusals.refusal(call, "model", told)
    return model


def available_traits(model: Model | None = None) -> list[str]:
    """Names of the groups of calls that the model offers.

    Example:
        >>> async def main():
        ...     print("Forward" in available_traits())
        True
    """
    return list(_chosen("available_traits", model).traits)


def get_kv_page_size(model: Model | None = None) -> int:
    """Tokens that one KvPage holds.

    Example:
        >>> async def main():
        ...     size = get_kv_page_size()
        ...     print(len(alloc_kvpage(-(-100 // size))))  # enough for 100 tokens
        7
    """
    return _chosen("get_kv_page_size", model).page_size


def create_queue(model: Model | None = None) -> Queue:
    """A new command queue for `model` (None: the default).

    Example:
        >>> async def main():
        ...     q = create_queue()
        ...     embeds = q.alloc_emb(2)  # as alloc_emb(q, 2)
        ...     await synchronize(q)
    """
    model = _chosen("create_queue", model)
    queue_id = ids.queue
    ids.queue += 1
    channel.record(abi.OP_CREATE_QUEUE, queue_id, model.index)
    return Queue(queue_id, model)


def default_queue() -> Queue:
    """The queue that calls without one use."""
    if state.default_queue is None:
        state.default_queue = Queue(0, None)
    return state.default_queue


def usage() -> asyncio.Future[Usage]:
    """What the program holds of its engine.

    Example:
        >>> async def main():
        ...     pages = alloc_kvpage(2)
        ...     await synchronize()
        ...     print((await usage()).pages)
        2
    """
    return channel.call(_decode_usage, abi.OP_USAGE)


# ---- text -----------------------------------------------------------------------------------------------------------


def tokenize_with(model: Model, text: str, *, special: bool = False) -> asyncio.Future[list[int]]:
    """Token ids of `text`; `special` adds what the model's tokenizer puts around a text (such as BOS)."""
    payload = _refusals.utf8("tokenize", "text", text)
    return channel.call(_decode_ids, abi.OP_TOKENIZE, 0, model.index, int(special), 0, payload)


def detokenize_with(model: Model, tokens: int | Sequence[int]) -> asyncio.Future[str]:
    """The text of `tokens`; bytes that are no UTF-8 become U+FFFD."""
    return channel.call(_decode_text, abi.OP_DETOKENIZE, 0, model.index, payload=_token_list("detokenize", tokens))


def detokenize_bytes(tokens: int | Sequence[int], model: Model | None = None) -> asyncio.Future[bytes]:
    r"""The bytes of `tokens`, which may end inside a character.

    Example:
        >>> async def main():
        ...     print(await detokenize_bytes([195]))
        b'\xc3'
    """
    number = _chosen("detokenize_bytes", model).index
    return channel.call(_decode_bytes, abi.OP_DETOKENIZE, 0, number, payload=_token_list("detokenize_bytes", tokens))


def get_vocabs(model: Model | None = None, *, first: int = 0, count: int = 0) -> asyncio.Future[list[bytes]]:
    """The bytes of each token, from token `first` on: `count` of them, or all (0).

    Example:
        >>> async def main():
        ...     print(await get_vocabs(first=72, count=2))
        [b'H', b'I']
    """
    number = _chosen("get_vocabs", model).index
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
    listed = _arguments.messages("format_chat", messages)
    wanted = {} if variables is None else _arguments.variables("format_chat", variables)
    wanted = wanted | {"messages": listed, "add_generation_prompt": add_generation_prompt}
    if tools is not None:
        wanted["tools"] = _arguments.tools("format_chat", tools)
    body = json.dumps(wanted).encode()
    return channel.call(_decode_text, abi.OP_FORMAT_CHAT, 0, _chosen("format_chat", model).index, payload=body)


def _token_list(call: str, tokens: int | Sequence[int]) -> bytes:
    try:
        return u32((tokens,) if isinstance(tokens, int) else tokens)
    except (TypeError, OverflowError):
        raise _refusals.tokens(call, tokens) from None


# ---- decoders: (a, b, c, payload) -> value --------------------------------------------------------------------------


def _decode_bytes(_a: int, _b: int, _c: int, payload: bytes) -> bytes:
    return payload


def _decode_text(_a: int, _b: int, _c: int, payload: bytes) -> str:
    return payload.decode(errors="replace")


def _decode_json(_a: int, _b: int, _c: int, payload: bytes) -> Any:
    return json.loads(payload)


def _decode_ids(_a: int, _b: int, _c: int, payload: bytes) -> list[int]:
    return from_u32(payload)


def _decode_usage(_a: int, _b: int, _c: int, payload: bytes) -> Usage:
    known = json.loads(payload)
    return Usage(**{name: int(known.get(name, 0)) for name in Usage.__slots__})


def _decode_vocabs(_a: int, _b: int, _c: int, payload: bytes) -> list[bytes]:
    return Words(payload).all()


def _decode_model(_a: int, _b: int, _c: int, payload: bytes) -> Model:
    info = json.loads(payload)
    known = state.models.get(info["name"])
    if known is not None and known.index == info["index"]:
        return known
    model = Model(
        index=info["index"],
        name=info["name"],
        page_size=info["page_size"],
        vocab_size=info["vocab_size"],
        max_position=info["max_position"],
        stop_tokens=tuple(info.get("stop_tokens", ())),
        bos_token=info.get("bos_token"),
        top_k_limit=info.get("top_k_limit", abi.DEFAULT_TOP_K),
        max_batch_tokens=info["max_batch_tokens"],
        traits=tuple(info.get("traits", ())),
    )
    state.models[model.name] = model
    return model
