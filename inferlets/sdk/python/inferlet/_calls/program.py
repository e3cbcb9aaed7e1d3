"""Calls that take no turn in a queue: arguments, messages, queues, usage (the paper's core-runtime trait).

The runtime answers them, without control or an engine; an answer takes some tens of microseconds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from inferlet._calls.receiving import Receiving
from inferlet._generated import abi
from inferlet._models.models import chosen
from inferlet._queues.queue import Queue
from inferlet._values import refusals
from inferlet._values.ids import ids
from inferlet._values.types import Model, Usage
from inferlet._wire import answers
from inferlet._wire.channel import channel

VERSION = "0.1.0"


class _State:
    """What a program has learned of its surroundings."""

    __slots__ = ("args", "default_queue", "inbox", "spare_queues")

    def __init__(self) -> None:
        self.args: list[str] = []
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
        payload = refusals.utf8("send", "message", message)
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
    return state.inbox.next(answers.text)


def receive_bytes() -> asyncio.Future[bytes]:
    """The next message from the client, as it was sent.

    Example:
        >>> async def main():
        ...     picture = asyncio.ensure_future(receive_bytes())  # it may come while the program does something else
        ...     await synchronize()
        ...     print(picture.done())
        False
    """
    return state.inbox.next(answers.raw)


def create_queue(model: Model | None = None) -> Queue:
    """A new command queue for `model` (None: the default).

    Example:
        >>> async def main():
        ...     q = create_queue()
        ...     embeds = q.alloc_emb(2)  # as alloc_emb(q, 2)
        ...     await synchronize(q)
    """
    model = chosen("create_queue", model)
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


def _decode_usage(_a: int, _b: int, _c: int, payload: bytes) -> Usage:
    known = json.loads(payload)
    return Usage(**{name: int(known.get(name, 0)) for name in Usage.__slots__})
