"""Calls outside of queues: arguments, messages, making queues, usage (the core-runtime trait of the paper).

The runtime itself answers most of these calls, within tens of microseconds, without an engine.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from inferlet._calls.receiving import Receiving
from inferlet._generated import packers
from inferlet._models.models import chosen
from inferlet._queues.queue import Queue
from inferlet._values import refusals
from inferlet._values.arguments import shown
from inferlet._values.ids import ids
from inferlet._values.types import Model, Priority, Usage
from inferlet._wire import answers
from inferlet._wire.channel import channel

if TYPE_CHECKING:
    from inferlet.grammar import Grammar


class _State:
    """What the program was given and has made: arguments, its default queue, queues to use again, its inbox."""

    __slots__ = (
        "args",
        "children",
        "default_queue",
        "grammars",
        "inbox",
        "instance_id",
        "next_args",
        "requests",
        "spare_queues",
        "version",
    )

    def __init__(self) -> None:
        self.args: list[str] = []
        self.next_args: list[str] | None = None  # of the next run, if there is to be one
        self.default_queue: Queue | None = None
        self.spare_queues: dict[int, list[Queue]] = {}  # of closed contexts, by model
        self.inbox = Receiving()
        self.requests = 0  # over HTTP, so far
        self.children = 0  # that it has started
        self.version: str | None = None  # of the runtime, and the program's id, once the host has told
        self.instance_id: str | None = None
        self.grammars: dict[tuple[int, Grammar], Any] = {}  # what was compiled, by model


state = _State()


def reset(args: Sequence[str]) -> None:
    """Forget the last program; the next one has these arguments."""
    state.__init__()  # type: ignore[misc]
    state.args = list(args)
    ids.__init__()  # type: ignore[misc]


def get_version() -> str:
    """Return the release of the runtime that runs the program. The host is asked once (paper, section 4).

    Example:
        >>> async def main():
        ...     print(get_version())
        0.1.0
    """
    if state.version is None:
        state.version = channel.result(channel.call(answers.text, *packers.get_version()))
    return state.version


def get_instance_id() -> str:
    """Return the program's id, which clients and `tartlet ps` show. The host is asked once (paper, section 4).

    Example:
        >>> async def main():
        ...     print(len(get_instance_id()))
        36
    """
    if state.instance_id is None:
        state.instance_id = channel.result(channel.call(answers.text, *packers.get_instance_id()))
    return state.instance_id


def get_arg() -> list[str]:
    """Return the arguments that the program was launched with.

    Example:
        >>> async def main():
        ...     print(get_arg() or "none given")
        none given
    """
    return list(state.args)


def continue_as_new(args: Sequence[str] = ()) -> NoReturn:
    """End this run of the program, and begin its next run with other arguments and an empty journal.

    A program that lives long would fill its journal, which holds everything that it was ever told. So it passes what it
    still needs as arguments, once in a while. The program keeps its id, its output, its clients, and the messages that
    it has not received. Pages, queues, subscriptions and everything in its memory are gone. The next run begins when
    this one has ended: `finally` blocks run, and a failure in them ends the program.

    Args:
        args: the arguments of the next run. `json.dumps` makes text of state.

    Raises:
        TypeError: an argument is no text.

    Example:
        >>> async def main(args):
        ...     seen = int(args[0]) if args else 0
        ...     if seen < 3:
        ...         continue_as_new([str(seen + 1)])
        ...     return f"the run with {seen}"
    """
    if isinstance(args, str) or not all(isinstance(arg, str) for arg in args):
        raise TypeError("continue_as_new takes a list of texts: json.dumps() makes text of other values")
    state.next_args = [refusals.utf8("continue_as_new", "args", arg).decode() for arg in args]
    raise SystemExit(0)


def record_continue(args: Sequence[str], given_back: Iterable[bytes]) -> None:
    """Ask the host for the program's next run, whose first messages are those that are given back."""
    told = json.dumps(list(args)).encode()
    messages = b"".join(len(message).to_bytes(4, "little") + message for message in given_back)
    channel.record(*packers.continue_(told, messages))


def send(message: str | bytes) -> None:
    """Send a message to the client that launched the program.

    Args:
        message: text, or bytes, which arrive as they are. A message of more than 2 MiB ends the program with
            `FrameTooLarge`.

    Raises:
        TypeError: `message` is neither text nor bytes.
        InvalidArgument: `message` contains half of a surrogate pair, which UTF-8 can't express.

    Example:
        >>> async def main():
        ...     send("half done")
        ...     send("done".encode("utf-16"))  # as bytes
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
    channel.record(*packers.send(payload))


def receive() -> asyncio.Future[str]:
    """Wait for the next message from the client, as text.

    Example:
        >>> async def main():
        ...     try:
        ...         async with asyncio.timeout(0.01):  # without a timeout the program waits until a message comes
        ...             print(await receive())
        ...     except TimeoutError:
        ...         print("no message yet")
        no message yet
    """
    return state.inbox.next(answers.text)


def receive_bytes() -> asyncio.Future[bytes]:
    """Wait for the next message from the client, as bytes.

    Example:
        >>> async def main():
        ...     picture = asyncio.ensure_future(receive_bytes())  # the program works on until the message comes
        ...     await synchronize()
        ...     print(picture.done())
        False
    """
    return state.inbox.next(answers.raw)


def create_queue(model: Model | None = None) -> Queue:
    """Make a command queue.

    Args:
        model: the model whose commands the queue takes; None for the program's default model.

    Raises:
        InvalidArgument: `model` is no `Model`.

    Example:
        >>> async def main():
        ...     q = create_queue()
        ...     embeds = q.alloc_emb(2)  # as alloc_emb(q, 2)
        ...     await synchronize(q)
    """
    model = chosen("create_queue", model)
    queue_id = ids.queue
    ids.queue += 1
    channel.record(*packers.create_queue(queue_id, model.index))
    return Queue(queue_id, model)


def take_queue(model: Model) -> Queue:
    """Return a queue that a closed context gave back, or a new one."""
    spare = state.spare_queues.get(model.index)
    return spare.pop() if spare else create_queue(model)


def give_queue_back(queue: Queue) -> None:
    """Keep the queue of a closed context for the next context.

    A queue with a failure that the program has not seen is not kept: the program fails with that error at its end.
    """
    if queue.failure is not None:
        if not queue.failure_seen:
            return
        queue.reset()
    if queue.priority != Priority.NORMAL:
        queue.set_priority(Priority.NORMAL)
    if not queue.prefix_cache:
        queue.set_prefix_cache(True)
    state.spare_queues.setdefault(queue.model.index, []).append(queue)


def default_queue() -> Queue:
    """Return the queue of calls that name none."""
    if state.default_queue is None:
        state.default_queue = Queue(0, None)
    return state.default_queue


def expect(tokens: int) -> None:
    """Say how many more tokens the program expects to compute: prompts and answers of all its contexts, from now on.

    This is a hint. With the order `gittins`, programs that need little go first, and without the hint past runs of the
    program tell how much it needs. A program that computes more than twice what it said isn't put forward for what it
    says later, so say what the whole rest of the program needs, not its next call. Later calls replace earlier ones.

    Args:
        tokens: how many; 0 if the program can't say any more. More than 2,147,483,648 count as that.

    Raises:
        InvalidArgument: `tokens` is no whole number, or is below 0.

    Example:
        >>> async def main():
        ...     questions = ["One?", "Two?"]
        ...     expect(len(questions) * 120)  # 20 tokens of prompt and 100 of answer for each
    """
    if type(tokens) is not int or tokens < 0:
        raise refusals.refusal("expect", "tokens", f"it is a whole number of at least 0, not {shown(tokens)}")
    channel.record(*packers.expect(min(tokens, 1 << 31)))


def usage() -> asyncio.Future[Usage]:
    """Ask what the program holds of its engine.

    Example:
        >>> async def main():
        ...     pages = alloc_kvpage(2)
        ...     await synchronize()
        ...     print((await usage()).pages)
        2
    """
    return channel.call(_decode_usage, *packers.usage())


def _decode_usage(_a: int, _b: int, _c: int, payload: bytes) -> Usage:
    known = json.loads(payload)
    return Usage(**{name: int(known.get(name, 0)) for name in Usage.__slots__})
