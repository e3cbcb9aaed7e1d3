"""The paper's calls as functions. A queue may be the first argument; the default queue is used without one.

`forward(q, ikv, iemb)` is `q.forward(ikv, iemb)`, and `forward(ikv, iemb)` is the same call on the default queue. The
methods of `Queue` document the arguments.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

from inferlet._calls.program import default_queue
from inferlet._models.models import default_model
from inferlet._models.text import detokenize_with, tokenize_with
from inferlet._queues.queue import Queue
from inferlet._values.arguments import text
from inferlet._values.types import Priority

__all__ = [
    "alloc_emb",
    "alloc_grammar",
    "alloc_kvpage",
    "alloc_slot",
    "cancel",
    "copy_kvpage",
    "copy_table",
    "dealloc_emb",
    "dealloc_grammar",
    "dealloc_kvpage",
    "dealloc_slot",
    "detokenize",
    "embed_txt",
    "export_kvpage",
    "forward",
    "forward_table",
    "forward_with_adapter",
    "get_all_exported_kvpages",
    "get_next_dist",
    "get_next_dists",
    "import_kvpage",
    "import_tokens",
    "mark",
    "mask_kvpage",
    "mask_table",
    "reset",
    "sample",
    "set_prefix_cache",
    "set_queue_priority",
    "synchronize",
    "table",
    "tokenize",
    "unexport_kvpage",
]

_P = ParamSpec("_P")
_R_co = TypeVar("_R_co", covariant=True)


class _QueueCall(Protocol[_P, _R_co]):
    """A call whose first argument may be a queue."""

    @overload
    def __call__(self, queue: Queue, /, *args: _P.args, **kwargs: _P.kwargs) -> _R_co: ...
    @overload
    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R_co: ...


def _on_queue(method: Callable[Concatenate[Queue, _P], _R_co]) -> _QueueCall[_P, _R_co]:
    """Make the function form of a method of `Queue`."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], Queue):
            return method(*args, **kwargs)
        return method(default_queue(), *args, **kwargs)

    signature = inspect.signature(method)
    call.__name__ = call.__qualname__ = method.__name__
    call.__doc__ = method.__doc__
    call.__module__ = "inferlet"
    call.__signature__ = signature.replace(parameters=[*signature.parameters.values()][1:])  # type: ignore[attr-defined]
    return cast("_QueueCall[_P, _R_co]", call)


alloc_kvpage = _on_queue(Queue.alloc_kvpage)
dealloc_kvpage = _on_queue(Queue.dealloc_kvpage)
alloc_emb = _on_queue(Queue.alloc_emb)
dealloc_emb = _on_queue(Queue.dealloc_emb)
alloc_grammar = _on_queue(Queue.alloc_grammar)
dealloc_grammar = _on_queue(Queue.dealloc_grammar)
alloc_slot = _on_queue(Queue.alloc_slot)
dealloc_slot = _on_queue(Queue.dealloc_slot)
embed_txt = _on_queue(Queue.embed_txt)
forward = _on_queue(Queue.forward)
forward_with_adapter = _on_queue(Queue.forward_with_adapter)
table = _on_queue(Queue.table)
forward_table = _on_queue(Queue.forward_table)
copy_kvpage = _on_queue(Queue.copy_kvpage)
copy_table = _on_queue(Queue.copy_table)
mask_kvpage = _on_queue(Queue.mask_kvpage)
mask_table = _on_queue(Queue.mask_table)
get_next_dist = _on_queue(Queue.get_next_dist)
get_next_dists = _on_queue(Queue.get_next_dists)
sample = _on_queue(Queue.sample)
synchronize = _on_queue(Queue.synchronize)
reset = _on_queue(Queue.reset)
cancel = _on_queue(Queue.cancel)
mark = _on_queue(Queue.mark)
export_kvpage = _on_queue(Queue.export_kvpage)
import_kvpage = _on_queue(Queue.import_kvpage)
import_tokens = _on_queue(Queue.import_tokens)
unexport_kvpage = _on_queue(Queue.unexport_kvpage)
get_all_exported_kvpages = _on_queue(Queue.get_all_exported_kvpages)
set_prefix_cache = _on_queue(Queue.set_prefix_cache)


@overload
def set_queue_priority(queue: Queue, priority: Priority, /) -> None: ...
@overload
def set_queue_priority(priority: Priority, /) -> None: ...
def set_queue_priority(*args: Any) -> None:
    """Set how urgent a queue's commands are, compared with the commands of other queues.

    Example:
        >>> async def main():
        ...     behind = create_queue()
        ...     set_queue_priority(behind, Priority.LOW)  # its commands run after those of other queues
        ...     set_queue_priority(Priority.HIGH)  # the program's default queue
    """
    queue, priority = _parted("set_queue_priority", "priority", args)
    (queue or default_queue()).set_priority(priority)


@overload
def tokenize(queue: Queue, text: str, /, *, special: bool = False) -> asyncio.Future[list[int]]: ...
@overload
def tokenize(text: str, /, *, special: bool = False) -> asyncio.Future[list[int]]: ...
def tokenize(*args: Any, special: bool = False) -> asyncio.Future[list[int]]:
    """Ask for the token ids of a text. `special` adds the tokenizer's special tokens, such as BOS.

    Example:
        >>> async def main():
        ...     tokens = await tokenize("Hi")
        ...     print(await detokenize(tokens))
        Hi
    """
    queue, given = _parted("tokenize", "text", args)
    text("tokenize", given)
    return tokenize_with(queue.model if queue else default_model(), given, special=special)


@overload
def detokenize(queue: Queue, tokens: int | Sequence[int], /) -> asyncio.Future[str]: ...
@overload
def detokenize(tokens: int | Sequence[int], /) -> asyncio.Future[str]: ...
def detokenize(*args: Any) -> asyncio.Future[str]:
    """Ask for the text of one or more tokens. Bytes that are no UTF-8 become U+FFFD.

    Example:
        >>> async def main():
        ...     print(await detokenize([72, 105]))
        Hi
    """
    queue, tokens = _parted("detokenize", "token, or list of tokens", args)
    return detokenize_with(queue.model if queue else default_model(), tokens)


def _parted(name: str, what: str, args: tuple[Any, ...]) -> tuple[Queue | None, Any]:
    """Split arguments into the queue, if the first one is a queue, and the one other argument.

    Raises:
        TypeError: there is not exactly one other argument.
    """
    queue = args[0] if args and isinstance(args[0], Queue) else None
    rest = args if queue is None else args[1:]
    if len(rest) != 1:
        raise TypeError(f"{name} takes one {what}, not {len(rest)}")
    return queue, rest[0]
