"""The operations SPAWN, CHILD_SEND, CHILD_NEXT and CHILD_KILL."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any, Final, Protocol

from tartlet_common.abi import ChildEvent, Flag, Record
from tartlet_common.errors.registry import (
    InternalError,
    InvalidArgument,
    RuntimeLost,
    Superseded,
    TartletError,
    Unavailable,
)
from tartlet_common.rpc.error_proto import error_from_proto
from tartlet_protos import programs_pb2
from tartlet_runtime.budget.ledger import Ledger, Use
from tartlet_runtime.children.asked import Asked
from tartlet_runtime.children.children import Child, Children, Told

log = logging.getLogger(__name__)

_AWAIT: Final = int(Flag.AWAIT)
_Event = programs_pb2.ProgramEvent
_AGAIN_S: Final = 0.5
"""Time between two attempts to reach a child that is on its way to another runtime."""
_ATTEMPTS: Final = 120


class Answers(Protocol):
    """A program's inbox, as far as children go."""

    def result(self, ticket: int, a: int, b: int, payload: bytes) -> None:
        """Answer a command."""

    def refuse(self, record: Record, error: TartletError) -> None:
        """Answer a command with an error."""


class Parent(Protocol):
    """The program that has children."""

    children: Children

    @property
    def inbox(self) -> Answers:
        """Where its answers go."""

    @property
    def max_children(self) -> int:
        """How many programs it may start."""

    def leave(self, action: Callable[[], None]) -> None:
        """Do what leaves the system, once all is stored that led to it."""

    def end(self, error: TartletError | None) -> None:
        """End the program."""


class Stream(Protocol):
    """The events of a child: the answer to its launch, or to the question for it, and then its output."""

    def messages(self) -> AsyncIterator[programs_pb2.ProgramEvents]:
        """Yield portions, until the child has ended or was refused."""

    def close(self) -> None:
        """Read no further."""


class Births(Protocol):
    """Starts and finds programs, wherever they run."""

    def check(self, parent: Any, asked: Asked) -> None:
        """Check that a program may start another one. Raises `NotAllowed`."""

    def launch(self, parent: Any, asked: Asked, ticket: int) -> Stream:
        """Start a child, or find the one that this ticket has started."""

    def follow(self, parent: Any, program_id: str, offset: int) -> Stream:
        """Read a child's output from an offset on."""

    async def send(self, parent: Any, program_id: str, message: bytes, ticket: int) -> None:
        """Send a message, which arrives once for each ticket. Raises what the child's runtime answers."""

    async def kill(self, parent: Any, program_id: str, reason: str) -> None:
        """End a child. Raises what the child's runtime answers."""


class ChildOps:
    """Starts programs for programs, and tells parents of them. All methods are called on the loop's thread."""

    births: Births
    """Wired by `app`."""

    def __init__(self, spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]], ledger: Ledger) -> None:
        """`spawn` owns the tasks, and `ledger` counts what is read ahead of parents."""
        self._spawn = spawn
        self._ledger = ledger

    def spawn(self, parent: Parent, record: Record, payload: bytes) -> None:
        """Start a child.

        Raises:
            InvalidArgument, ResourceQuotaExceeded: the child is none, or one too many.
            NotAllowed: the program may not start it.
        """
        _awaited(record)
        asked = Asked.of(payload)
        self.births.check(parent, asked)
        child = parent.children.admit(record.a, asked, parent.max_children)
        parent.leave(partial(self._launch, parent, child, record, asked))

    def send(self, parent: Parent, record: Record, payload: bytes) -> None:
        """Send a message to a child.

        Raises:
            UnknownResource, TooManyCommands: there is no such child, or too many messages are under way.
        """
        _awaited(record)
        child = parent.children.at(record.a)
        sending = partial(self.births.send, parent, child.program_id, payload, record.ticket)
        self._order(parent, child, record, sending)

    def kill(self, parent: Parent, record: Record, payload: bytes) -> None:
        """End a child.

        Raises:
            UnknownResource, TooManyCommands: as of `send`.
        """
        _awaited(record)
        child = parent.children.at(record.a)
        reason = payload[:1024].decode(errors="replace")
        self._order(parent, child, record, partial(self.births.kill, parent, child.program_id, reason))

    def next(self, parent: Parent, record: Record) -> None:
        """Tell what a child does next.

        Raises:
            UnknownResource, InvalidArgument: there is no such child, or the last question for it waits.
        """
        _awaited(record)
        child = parent.children.at(record.a)
        if child.ticket:
            raise InvalidArgument(argument="child", detail="the last question for it isn't answered yet")
        child.ticket = record.ticket
        self._tell(parent, child)

    def resume(self, parent: Parent) -> None:
        """Follow the children of a program that has begun again."""
        for child in parent.children.left:
            if child.task is None:
                child.task = self._spawn(self._follow(parent, child, None, None, None))

    # ---- a child's output -----------------------------------------------------------------------------------------

    def _launch(self, parent: Parent, child: Child, record: Record, asked: Asked) -> None:
        if not parent.children.is_closed:
            stream = self.births.launch(parent, asked, record.ticket)
            child.task = self._spawn(self._follow(parent, child, stream, record, asked))
            child.task.add_done_callback(lambda _: stream.close())  # it may be cancelled before it begins

    async def _follow(
        self, parent: Parent, child: Child, stream: Stream | None, record: Record | None, asked: Asked | None
    ) -> None:
        """Read a child's output to its end, at each of its runtimes. `record`: the SPAWN without an answer."""
        held_bytes = 0
        refusal: TartletError = RuntimeLost()
        try:
            for _ in range(_ATTEMPTS):
                stream = stream or self._again(parent, child, record, asked)
                try:
                    async for message in stream.messages():
                        for event in message.events:
                            if event.kind == _Event.ACCEPTED and record is not None:
                                child.program_id = event.program_id
                                self._answer(parent, record.ticket, child.number, 0, child.program_id.encode())
                                record = None
                            elif event.kind == _Event.REJECTED and record is not None:
                                refusal = error_from_proto(event.error) or RuntimeLost()
                                if isinstance(refusal, Unavailable):  # its key makes it safe to ask again
                                    continue
                                self._turn_away(parent, child, record, asked, refusal)
                                return
                            elif self._took(child, event):
                                self._tell(parent, child)
                        self._ledger.take(Use.INBOXES, child.held_bytes - held_bytes)
                        held_bytes = child.held_bytes
                        await child.room.wait()
                finally:
                    stream.close()
                if child.is_over or (child.events and child.events[-1].kind != ChildEvent.MESSAGE):
                    return
                stream = None
                await asyncio.sleep(_AGAIN_S)
            self._turn_away(parent, child, record, asked, refusal)
        except TartletError as e:  # no memory for what the child has sent
            parent.end(e)
        except Exception as e:  # our own bug: the program that waits for this child is told
            log.exception("a child")
            parent.end(InternalError(detail=repr(e)))
        finally:
            self._ledger.give(Use.INBOXES, held_bytes)

    def _again(self, parent: Parent, child: Child, record: Record | None, asked: Asked | None) -> Stream:
        """Ask for a child again, or follow one that has begun."""
        if record is None or asked is None:
            return self.births.follow(parent, child.program_id, child.reached)
        return self.births.launch(parent, asked, record.ticket)

    def _turn_away(
        self, parent: Parent, child: Child, record: Record | None, asked: Asked | None, error: TartletError
    ) -> None:
        """Tell a parent that its child hasn't begun, or that a child that has can't be found any more."""
        if record is None or asked is None:
            child.add(_failure(child, error))
            self._tell(parent, child)
        else:
            parent.children.refused(child, asked)
            self._refuse(parent, record, error)

    @staticmethod
    def _took(child: Child, event: programs_pb2.ProgramEvent) -> bool:
        """Note what a child's stream tells. Returns whether its parent has something to be told."""
        error = error_from_proto(event.error)
        if event.kind == _Event.REJECTED:
            if isinstance(error, Unavailable):  # it is on its way to another runtime
                return False
            child.add(_failure(child, error or RuntimeLost()))
            return True
        if event.kind == _Event.ENDED:
            if isinstance(error, Superseded):
                return False
            ended = Told(ChildEvent.RESULT, event.offset + 1, event.data)
            child.add(ended if error is None else _failure(child, error))
            return True
        if event.kind == _Event.ACCEPTED or event.offset < child.reached:
            return False
        child.reached = event.offset + 1
        if event.kind == _Event.MESSAGE:
            child.add(Told(ChildEvent.MESSAGE, child.reached, event.data))
        return event.kind == _Event.MESSAGE

    def _tell(self, parent: Parent, child: Child) -> None:
        if child.ticket and child.events:
            ticket, child.ticket = child.ticket, 0
            self._answer(parent, ticket, *child.take())

    # ---- what goes to a child -------------------------------------------------------------------------------------

    def _order(
        self, parent: Parent, child: Child, record: Record, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        children = parent.children
        children.admit_task()

        async def answered() -> None:
            try:
                async with child.sending:
                    await _repeated(work)
            except TartletError as e:
                self._refuse(parent, record, e)
            except Exception as e:  # our own bug: the program that waits for this answer is told
                log.exception("a message to a child")
                self._refuse(parent, record, InternalError(detail=repr(e)))
            else:
                self._answer(parent, record.ticket, 0, 0, b"")

        def begin() -> None:
            if not children.is_closed:
                task = self._spawn(answered())
                children.tasks.add(task)
                task.add_done_callback(children.tasks.discard)

        parent.leave(begin)

    @staticmethod
    def _answer(parent: Parent, ticket: int, a: int, b: int, payload: bytes) -> None:
        try:
            parent.inbox.result(ticket, a, b, payload)
        except TartletError as e:
            parent.end(e)

    @staticmethod
    def _refuse(parent: Parent, record: Record, error: TartletError) -> None:
        try:
            parent.inbox.refuse(record, error)
        except TartletError as e:
            parent.end(e)


async def _repeated(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Do what a key makes safe to repeat, until the child's runtime can be reached."""
    for _ in range(_ATTEMPTS):
        try:
            return await work()
        except Unavailable:
            await asyncio.sleep(_AGAIN_S)
    return await work()


def _failure(child: Child, error: TartletError) -> Told:
    told = {"number": error.number, "fields": json.loads(error.to_json())}
    return Told(ChildEvent.ERROR, child.reached + 1, json.dumps(told, separators=(",", ":")).encode())


def _awaited(record: Record) -> None:
    if not record.flags & _AWAIT:
        raise InvalidArgument(argument="child", detail="the answer must be awaited")
