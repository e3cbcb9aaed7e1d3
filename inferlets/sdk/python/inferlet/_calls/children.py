"""Programs that a program starts: `spawn`, and messages to and from its children.

Programs of the paper are launched by clients alone. A child is a program as any other, with an id, output and a journal
of its own. Its parent takes the client's place.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any

from inferlet import errors
from inferlet._calls import program
from inferlet._generated import abi, packers
from inferlet._values import arguments, refusals
from inferlet._values.types import Model
from inferlet._wire import answers
from inferlet._wire.channel import channel


class Child:
    """A program that this one has started; `spawn` makes it.

    Iterating over it gives the child's messages as text, until the child ends.

    Example:
        >>> async def main():
        ...     try:
        ...         child = await spawn("counter", ["3"])
        ...         async for message in child:
        ...             print("it says", message)
        ...         print(await child.result())
        ...     except errors.UnknownInferlet:
        ...         print("the catalogue has none of that name")
        the catalogue has none of that name
    """

    __slots__ = ("_asked", "_end", "_messages", "_number", "_offset", "id")

    def __init__(self, number: int, program_id: str) -> None:
        self.id = program_id
        """What clients and `tartlet ps` show."""
        self._number = number
        self._offset = 0
        self._messages: deque[bytes] = deque()
        self._end: tuple[str, errors.TartletError | None] | None = None
        self._asked: asyncio.Future[tuple[int, int, bytes]] | None = None

    async def result(self) -> str:
        """Wait until the child has ended, and return what its `main` returned, as text. Messages stay to be received.

        Raises:
            ChildFailed: the child has failed; `__cause__` is the child's error.
        """
        while self._end is None:
            await self._learn()
        result, error = self._end
        if error is not None:
            raise errors.ChildFailed(child=self.id, detail=str(error), number=error.number) from error
        return result

    async def receive(self) -> str:
        """Wait for the child's next message, as text.

        Raises:
            ChildEnded: the child has ended, and there is no message left.
        """
        return (await self.receive_bytes()).decode(errors="replace")

    async def receive_bytes(self) -> bytes:
        """Wait for the child's next message, as bytes.

        Raises:
            ChildEnded: the child has ended, and there is no message left.
        """
        while not self._messages:
            if self._end is not None:
                raise errors.ChildEnded(child=self.id)
            await self._learn()
        return self._messages.popleft()

    async def __aiter__(self) -> AsyncIterator[str]:
        while True:
            try:
                message = await self.receive()
            except errors.ChildEnded:
                return
            yield message

    def send(self, message: str | bytes) -> asyncio.Future[None]:
        """Send a message, which the child gets with `receive`; the answer says that the message can't be lost.

        Messages arrive in the order of these calls, each once.

        Args:
            message: text, or bytes; at most 2 MiB.

        Raises:
            UnknownProgram, UnknownResource: the child has ended.
            InboxFull: the child has too many messages that it has not received.
        """
        payload = refusals.data("Child.send", "message", message)
        return channel.call(answers.nothing, *packers.child_send(self._number, payload))

    def kill(self, reason: str = "by its parent") -> asyncio.Future[None]:
        """End the child, which fails with `ProgramKilled`.

        Raises:
            UnknownProgram, UnknownResource: the child has ended already.
        """
        payload = refusals.utf8("Child.kill", "reason", reason)
        return channel.call(answers.nothing, *packers.child_kill(self._number, payload))

    async def _learn(self) -> None:
        """Wait for what the child does next. Waits that are cancelled lose nothing."""
        if self._asked is None:
            self._asked = channel.call(_event, *packers.child_next(self._number, self._offset))
        asked = self._asked
        await asyncio.wait([asked])
        if self._asked is asked:  # else another task has taken it
            self._asked = None
            self._take(*asked.result())

    def _take(self, kind: int, offset: int, data: bytes) -> None:
        self._offset = offset
        if kind == abi.CHILD_EVENT_MESSAGE:
            self._messages.append(data)
        elif kind == abi.CHILD_EVENT_RESULT:
            self._end = (data.decode(errors="replace"), None)
        else:
            told = json.loads(data)
            self._end = ("", errors.from_wire(told["number"], json.dumps(told["fields"]).encode()))

    def __repr__(self) -> str:
        return f"Child({self.id!r})"


async def spawn(
    inferlet: str = "",
    args: Sequence[str] = (),
    *,
    model: Model | str = "",
    detached: bool = False,
    children: int = 0,
    pages: int = 0,
    memory_bytes: int = 0,
    deadline_s: float = 0.0,
) -> Child:
    """Start another program. Its parent gets its messages and its result, and it ends with its parent.

    The child has its own sandbox and journal, and this program's tenant, session and pool. It may reach what this
    program may reach and, if it comes from the catalogue, what its entry allows. A child is started once, also where
    this program begins again at another runtime.

    Args:
        inferlet: a name in the catalogue; "" for this program's own source, with other arguments.
        args: the child's arguments.
        model: its default model; "" for that of its entry in the catalogue, else this program's.
        detached: it lives on when this program ends.
        children: how many programs it and its children may start. They count as this program's: a run may start 256.
        pages: the most KV pages it may hold; 0, and more than this program may hold: as many as this program.
        memory_bytes: of its sandbox, likewise.
        deadline_s: seconds after which it ends, at most those that this program has left; 0: these.

    Raises:
        UnknownInferlet: the catalogue has none of that name.
        NotAllowed: this program may not start it.
        ResourceQuotaExceeded: this program has started as many programs as it may.
        Overloaded, MemoryBudgetExceeded: this runtime is full.
        InvalidArgument: an argument is none of these.

    Example:
        >>> async def main():
        ...     try:
        ...         readers = [await spawn("reader", [book]) for book in ("Emma", "Ulysses")]
        ...         return [await reader.result() for reader in readers]
        ...     except errors.UnknownInferlet as e:
        ...         print(e)
        no inferlet named 'reader' in the catalogue
    """
    if not isinstance(inferlet, str):
        raise refusals.refusal("spawn", "inferlet", f"it takes a text, not {arguments.shown(inferlet)}")
    if isinstance(args, str) or not all(isinstance(arg, str) for arg in args):
        raise refusals.refusal("spawn", "args", "it takes a list of texts; json.dumps() makes text of other values")
    limits = {"pages": pages, "memory_bytes": memory_bytes, "deadline_s": deadline_s}
    asked: dict[str, Any] = {
        "inferlet": inferlet,
        "args": [*args],
        "model": model.name if isinstance(model, Model) else model,
        "detached": detached,
        "children": children,
        "limits": {name: value for name, value in limits.items() if value},
    }
    try:
        told = json.dumps(asked, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError) as e:
        raise refusals.refusal("spawn", "children, pages, memory_bytes, deadline_s", str(e)) from None
    program.state.children += 1
    number = program.state.children
    payload = refusals.utf8("spawn", "args", told)
    return Child(number, await channel.call(answers.text, *packers.spawn(number, payload)))


def _event(a: int, b: int, _c: int, payload: bytes) -> tuple[int, int, bytes]:
    return a, b, payload
