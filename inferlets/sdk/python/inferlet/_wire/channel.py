"""The program's half of the ABI (docs/abi.md): commands out, answers in.

Commands are appended to two byte arrays, records and payload. Both leave as one submission when the program blocks. A
command that has an answer leaves a `Pending` under its ticket, and a delivery resolves it.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from array import array
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from inferlet._generated import abi
from inferlet._values.refusals import numbers
from inferlet._wire import host
from inferlet.errors import CommandCancelled, CommandSkipped, NothingToWaitFor, TartletError, UnsupportedAbi, from_wire


class CommandQueue(Protocol):
    """A queue, as far as the channel knows it: the commands that have ended, and the failure that poisons it."""

    done_ticket: int
    failure: TartletError | None

    @property
    def failure_seen(self) -> bool:
        """Whether the program got to know of the failure."""

    def fail(self, ticket: int, error: TartletError, answer: asyncio.Future[Any] | None = None) -> bool:
        """Note that a command failed; whether `answer` must keep asyncio's mark of a failure that nobody read."""

    def hush(self) -> None:
        """Forget the answers that nobody awaited."""

    def reset(self) -> None:
        """Make the queue usable again."""


class MessageWaiter(Protocol):
    """Somebody who waits for a message from the client."""

    def take(self, message: bytes) -> None:
        """Take the message that has come."""

    def set_exception(self, error: BaseException, /) -> None:
        """End without a message: the host refused to give one."""


Decoder = Callable[[int, int, int, bytes], Any]
"""Makes the value of an answer from the record's a, b, c and payload."""
Pending = tuple["asyncio.Future[Any]", Decoder, "CommandQueue | None"]

Names = tuple[str, ...]
pack_record = struct.Struct(abi.RECORD_FORMAT).pack
_unpack_records = struct.Struct(abi.RECORD_FORMAT).iter_unpack
_pack_header = struct.Struct(abi.HEADER_FORMAT).pack
_unpack_header = struct.Struct(abi.HEADER_FORMAT).unpack_from

WAIT_RECORDS = 1024
FLUSH_BYTES = 256 << 10
"""A program that records commands without blocking submits when its records or their payload have this size."""
MAX_PAYLOAD_BYTES = abi.MAX_SUBMISSION_BYTES - FLUSH_BYTES - 4096


def u32(values: Iterable[int]) -> bytes:
    """Pack integers as little-endian u32. All platforms of the SDK are little-endian."""
    return array("I", values).tobytes()


def from_u32(data: bytes) -> list[int]:
    """Unpack little-endian u32."""
    out = array("I")
    out.frombytes(data)
    return out.tolist()


class Answer(asyncio.Future[Any]):
    """The future of a call outside of queues. It warns if the program turns it into text without awaiting it."""

    def __str__(self) -> str:
        if not self.done():
            place = sys._getframe(1)  # noqa: SLF001 - the program's line
            if place.f_code is Answer.__format__.__code__:
                place = place.f_back or place
            told = "a call's result was made text before it came: write `await` before the call"
            print(f"{place.f_code.co_filename}:{place.f_lineno}: {told}", file=sys.stderr)
        return repr(self)

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


class Channel:
    """The command buffer of a program, and the futures that wait for answers."""

    __slots__ = (
        "_max_payload",
        "_payload",
        "_records",
        "_tickets",
        "before_submit",
        "killed",
        "listeners",
        "loop",
        "pending",
        "queues",
        "receives",
    )

    def __init__(self) -> None:
        self._records = bytearray()
        self._payload = bytearray()
        self._tickets = 1
        self._max_payload = MAX_PAYLOAD_BYTES
        self.pending: dict[int, Pending] = {}
        self.receives = 0  # how many of the pending commands ask for a message
        self.listeners: dict[MessageWaiter, None] = {}  # waits for a message, in order
        self.queues: dict[int, CommandQueue] = {}
        self.loop: asyncio.AbstractEventLoop | None = None
        self.before_submit: Callable[[], None] | None = None
        self.killed: TartletError | None = None

    @property
    def next_ticket(self) -> int:
        """The ticket of the next command."""
        return self._tickets

    def record(
        self,
        op: int,
        queue: int = 0,
        a: int = 0,
        b: int = 0,
        c: int = 0,
        payload: bytes = b"",
        flags: int = 0,
        names: Names = (),
    ) -> int:
        """Append one command; return its ticket.

        `names` are for the error alone: the call, then the arguments that became `a`, `b` and `c`.

        Raises:
            InvalidArgument: a number doesn't fit its field.
        """
        ticket = self._tickets
        self._tickets = ticket + 1
        size = len(payload)
        area = self._payload
        records = self._records
        if size + len(area) > FLUSH_BYTES or len(records) >= FLUSH_BYTES:
            self._make_room(size)
        try:
            records += pack_record(op, flags, ticket, queue, a, b, c, len(area), size)
        except struct.error:
            raise numbers(names, (a, b, c)) from None
        area += payload
        return ticket

    def _make_room(self, size: int) -> None:
        if size > self._max_payload:
            fields = b'{"size":%d,"what":"bytes in one call","limit":%d}' % (size, self._max_payload)
            raise from_wire(311, fields)  # FrameTooLarge
        self.submit()

    def call(  # noqa: PLR0913, PLR0917 - the fields of a record
        self,
        decode: Decoder,
        op: int,
        queue: int = 0,
        a: int = 0,
        b: int = 0,
        c: int = 0,
        payload: bytes = b"",
        owner: CommandQueue | None = None,
        names: Names = (),
    ) -> asyncio.Future[Any]:
        """Append a command that has an answer; return the future of the answer."""
        ticket = self.record(op, queue, a, b, c, payload, abi.FLAG_AWAIT, names)
        loop = self.loop
        if loop is None:
            raise RuntimeError("no program is running: commands can be given from main() on")
        future = loop.create_future() if owner is not None else Answer(loop=loop)
        self.pending[ticket] = (future, decode, owner)
        return future

    def submit(self) -> None:
        """Hand everything recorded so far to the host."""
        records = self._records
        if records:
            payload = self._payload
            header = _pack_header(abi.ABI_VERSION, 0, len(records) >> 5, len(payload), 0)
            data = b"".join((header, records, payload))
            records.clear()
            payload.clear()
            host.backend.submit(data)

    def flush(self) -> None:
        """Submit everything, the program's buffered output included."""
        if self.before_submit is not None:
            self.before_submit()
        self.submit()

    def wait(self, timeout_us: int = host.NO_TIMEOUT_US) -> None:
        """Submit, suspend until the host delivers, and resolve the answers.

        Raises:
            TartletError: the host ended the program (KILL).
            NothingToWaitFor: there is no time limit, no command is outstanding and no task waits for a message.
        """
        self.flush()
        if timeout_us == host.NO_TIMEOUT_US:
            self.check_expected()
        self.take(host.backend.wait(WAIT_RECORDS, timeout_us))

    def take(self, data: bytes) -> None:
        """Resolve the answers of one delivery.

        Raises:
            TartletError: the host ended the program (KILL).
        """
        self.deliver(data)
        if self.killed is not None:
            raise self.killed

    @property
    def expects(self) -> bool:
        """Whether the host will deliver something: an answer, or a message that a task waits for."""
        return len(self.pending) > self.receives or bool(self.listeners)

    def check_expected(self) -> None:
        """Check that a wait without a time limit can end.

        Raises:
            NothingToWaitFor: no command is outstanding and no task waits for a message.
        """
        if self.expects:
            return
        error = NothingToWaitFor()
        for queue in self.queues.values():
            if queue.failure is not None and not queue.failure_seen:
                raise queue.failure
            error.__cause__ = error.__cause__ or queue.failure  # a failure that the program knows may be the reason
        for task in asyncio.all_tasks(self.loop):
            for frame in task.get_stack(limit=1):
                error.add_note(f"Waiting: {frame.f_code.co_name}, {frame.f_code.co_filename}:{frame.f_lineno}")
        raise error

    def result(self, future: asyncio.Future[Any]) -> Any:
        """Wait for an answer without running other tasks; answers of the runtime take microseconds."""
        while not future.done():
            self.wait()
        return future.result()

    def deliver(self, data: bytes) -> None:
        """Resolve the answers of one delivery.

        Raises:
            UnsupportedAbi: the host speaks another version.
        """
        version, _, count, _, _ = _unpack_header(data)
        if version != abi.ABI_VERSION:
            raise UnsupportedAbi(version=version, supported=abi.ABI_VERSION)
        end = abi.HEADER_BYTES + count * abi.RECORD_BYTES
        pending = self.pending
        for event, flags, ticket, queue, a, b, c, offset, length in _unpack_records(data[abi.HEADER_BYTES : end]):
            payload = data[end + offset : end + offset + length]
            if event == abi.EVENT_RESULT:
                entry = pending.pop(ticket, None)
                if entry is not None:
                    future, decode, owner = entry
                    if owner is not None:
                        owner.done_ticket = ticket
                    if not future.done():
                        future.set_result(decode(a, b, c, payload))
            elif event == abi.EVENT_FAILURE:
                self._failed(flags, ticket, queue, from_wire(a, payload))
            elif event == abi.EVENT_SKIPPED:
                self._settle(ticket, CommandSkipped())
            elif event == abi.EVENT_CANCELLED:
                self._settle(ticket, CommandCancelled())
            elif event == abi.EVENT_KILL:
                self.killed = from_wire(a, payload)

    def _failed(self, flags: int, ticket: int, queue: int, error: TartletError) -> None:
        if flags & abi.FLAG_AWAIT:
            entry = self.pending.get(ticket)
            unread = entry is not None and entry[2] is not None and entry[2].fail(ticket, error, entry[0])
            self._settle(ticket, error, unread=unread)
        elif queue in self.queues:
            self.queues[queue].fail(ticket, error)

    def _settle(self, ticket: int, error: TartletError, *, unread: bool = False) -> None:
        entry = self.pending.pop(ticket, None)
        if entry is not None and not entry[0].done():
            entry[0].set_exception(error)
            if not unread:  # the queue keeps the failure, so asyncio needs no warning about an error that is not read
                entry[0]._log_traceback = False  # noqa: SLF001


channel = Channel()
"""The channel of the running program. A process or sandbox runs one program."""


def reset() -> Channel:
    """Forget everything, for another program in this process. Tests do this."""
    channel.__init__()  # type: ignore[misc]
    return channel
