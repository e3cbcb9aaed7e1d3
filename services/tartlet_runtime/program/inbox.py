"""What waits to be told to one program: answers and failures as records, and messages from clients; all bounded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from struct import Struct

from tartlet_common.abi import ABI_VERSION, HEADER_STRUCT, RECORD_BYTES, RECORD_STRUCT, Event, Flag, Record
from tartlet_common.errors.registry import (
    FrameTooLarge,
    InboxFull,
    ResourceQuotaExceeded,
    TartletError,
    TooManyCommands,
)
from tartlet_runtime.abi.limits import MAX_INBOX_BYTES, MAX_MESSAGE_BYTES, ProgramLimits
from tartlet_runtime.budget.holding import FREE_BYTES, Holding

MAX_DELIVERY_BYTES = 4 << 20
"""A delivery is cut between records so that guests can have a fixed buffer; a single larger record still goes out."""
_OFFSET = Struct("<I")
_OFFSET_AT = 24  # of the offset in a record
_TICKET = 2  # its place in a record
_AWAIT = int(Flag.AWAIT)
_RECORDS_PER_COMMAND = 2  # the runtime's own answers come on top of control's
_SPARE_RECORDS = 64  # for failures of queues and the like, which no command asked for


def pack_delivery(count: int, records: bytes, payload: bytes) -> bytes:
    """Return header, records and payload as one byte string."""
    return HEADER_STRUCT.pack(ABI_VERSION, 0, count, len(payload), 0) + records + payload


TIMER_DELIVERY = pack_delivery(1, RECORD_STRUCT.pack(Event.TIMER, 0, 0, 0, 0, 0, 0, 0, 0), b"")
"""The answer to a wait whose time limit has passed."""


class Inbox:
    """Chunks of records with their payload, and the messages and `receive` calls that wait for one another.

    A command stops counting as in flight when its answer arrives here, so answers that the program doesn't take have
    bounds of their own: `MAX_INBOX_BYTES`, and twice the program's commands in flight.

    Example:
        >>> from tartlet_common.config.settings import RuntimeSettings
        >>> from tartlet_runtime.abi.limits import default_limits
        >>> from tartlet_runtime.budget.ledger import Ledger, Use
        >>> memory = Holding(Ledger(1 << 30), Use.INBOXES)
        >>> inbox = Inbox(default_limits(RuntimeSettings()), memory, arrived=lambda: None, heard=lambda: None)
        >>> inbox.receive(ticket=7)
        >>> inbox.put_message(b"hi")
        >>> inbox.count, len(inbox.take(10))
        (1, 50)
    """

    __slots__ = (
        "_arrived",
        "_chunks",
        "_heard",
        "_is_closed",
        "_limits",
        "_memory",
        "_message_bytes",
        "_messages",
        "_receives",
        "_taken",
        "_under_way",
        "count",
        "from_control",
        "payload_bytes",
    )

    def __init__(
        self, limits: ProgramLimits, memory: Holding, arrived: Callable[[], None], heard: Callable[[], None]
    ) -> None:
        """Start empty.

        Args:
            limits: the program's.
            memory: the process's memory that the inbox takes, until it is closed.
            arrived: called after each addition of records.
            heard: called when the program asks for a message, or a message answers its request.
        """
        self._limits = limits
        self._memory = memory
        self._arrived = arrived
        self._heard = heard
        self._chunks: deque[tuple[int, bytes, bytes, bool]] = deque()  # and whether control sent them
        self._taken = 0  # records of the first chunk that were delivered: the chunk is not copied for each of them
        self._messages: deque[bytes] = deque()
        self._message_bytes = 0
        self._receives: deque[int] = deque()  # tickets of `receive` calls that wait for a message
        self._under_way: dict[int, bytes] = {}  # messages that answer a `receive`, until the guest has its answer
        self._is_closed = False
        self.count = 0
        self.payload_bytes = 0
        self.from_control = 0
        """Records of control that the guest has taken."""

    def restore(self, messages: Iterable[bytes], heard: int) -> None:
        """Begin with what the inbox of an earlier copy of the program had: messages, and how much of control was taken.

        Raises:
            MemoryBudgetExceeded: the process has no memory for the messages.
        """
        for message in messages:
            self._take_memory(len(message))
            self._messages.append(message)
            self._message_bytes += len(message)
        self.from_control = heard

    def skip_messages(self, count: int) -> None:
        """Drop messages that an earlier copy of the program was given."""
        for _ in range(min(count, len(self._messages))):
            self._message_bytes -= len(self._messages.popleft())

    # ---- what comes ----

    def add(self, count: int, records: bytes, payload: bytes, *, from_control: bool = False) -> None:
        """Append `count` records (abi.RECORD) whose offsets point into `payload`, from control or of this runtime.

        Raises:
            ResourceQuotaExceeded, TooManyCommands: the program doesn't take its answers.
            MemoryBudgetExceeded: the process has no memory for them.
        """
        if self._is_closed:
            return
        self._chunks.append((count, records, payload, from_control))
        self.count += count
        self.payload_bytes += len(payload)
        if self.payload_bytes > MAX_INBOX_BYTES:
            kind = "bytes of answers that it has not taken"
            raise ResourceQuotaExceeded(held=self.payload_bytes, kind=kind, asked=0, limit=MAX_INBOX_BYTES)
        if self.count > self._most_records:
            raise TooManyCommands(in_flight=self.count, limit=self._limits.commands_in_flight)
        if self.payload_bytes + self._message_bytes > self._memory.granted:
            self._memory.fit(self.payload_bytes + self._message_bytes)
        self._arrived()

    def answer(self, record: Record, payload: bytes) -> None:
        """Answer a command if the program awaits the answer.

        Raises:
            ResourceQuotaExceeded, TooManyCommands: the program doesn't take its answers.
        """
        if record.flags & _AWAIT:
            self._add_result(record.ticket, payload)

    def refuse(self, record: Record, error: TartletError) -> None:
        """Answer a command with an error, or raise the error if the program doesn't await the answer.

        Raises:
            ResourceQuotaExceeded, TooManyCommands: the program doesn't take its answers.
        """
        if self._is_closed:
            return
        if not record.flags & _AWAIT:
            raise error
        fields = error.to_json()
        self.add(
            1,
            RECORD_STRUCT.pack(Event.FAILURE, 1, record.ticket, record.queue, error.number, 0, 0, 0, len(fields)),
            fields,
        )

    def receive(self, ticket: int) -> None:
        """Answer `ticket` with the next message, now or when a message comes.

        Raises:
            TooManyCommands: too many calls wait already.
            ResourceQuotaExceeded: the program doesn't take its answers.
        """
        self._heard()
        if self._messages:
            message = self._messages.popleft()
            self._message_bytes -= len(message)
            self._under_way[ticket] = message
            self._add_result(ticket, message)
        elif len(self._receives) >= self._limits.commands_in_flight:
            raise TooManyCommands(in_flight=len(self._receives), limit=self._limits.commands_in_flight)
        else:
            self._receives.append(ticket)

    def put_message(self, message: bytes) -> None:
        """Give a client's message to a waiting `receive`, or keep it for the next.

        Raises:
            InboxFull: the program has too many unread messages.
            FrameTooLarge: the message is too long.
            MemoryBudgetExceeded: the process has no memory for it.
        """
        if len(message) > MAX_MESSAGE_BYTES:
            raise FrameTooLarge(size=len(message), what="bytes in a message", limit=MAX_MESSAGE_BYTES)
        limit = self._limits.inbox_messages
        if self._receives:
            if self.payload_bytes + len(message) > MAX_INBOX_BYTES or self.count >= self._most_records:
                raise InboxFull(pending=self.count, limit=limit)
            self._take_memory(len(message))
            self._heard()
            ticket = self._receives.popleft()
            self._under_way[ticket] = message
            self._add_result(ticket, message)
        elif len(self._messages) >= limit or self._message_bytes + len(message) > MAX_INBOX_BYTES:
            raise InboxFull(pending=len(self._messages), limit=limit)
        else:
            self._take_memory(len(message))
            self._messages.append(message)
            self._message_bytes += len(message)

    def untaken(self) -> list[bytes]:
        """Return the messages that the guest has not been given, in order."""
        return [*self._under_way.values(), *self._messages]

    def close(self) -> None:
        """Drop everything, and whatever comes later: the program has ended."""
        self._is_closed = True
        self._chunks.clear()
        self._messages.clear()
        self._under_way.clear()
        self._receives.clear()
        self.count = self.payload_bytes = self._message_bytes = 0
        self._memory.close()
        self._arrived = self._heard = _nothing

    @property
    def _most_records(self) -> int:
        return _RECORDS_PER_COMMAND * self._limits.commands_in_flight + _SPARE_RECORDS

    def result(self, ticket: int, a: int, b: int, payload: bytes) -> None:
        """Answer an awaited command with two numbers and a payload.

        Raises:
            ResourceQuotaExceeded, TooManyCommands: the program doesn't take its answers.
        """
        self.add(1, RECORD_STRUCT.pack(Event.RESULT, 0, ticket, 0, a, b, 0, 0, len(payload)), payload)

    def cancelled(self, ticket: int) -> None:
        """Tell that an awaited command was dropped.

        Raises:
            TooManyCommands: the program doesn't take its answers.
        """
        self.add(1, RECORD_STRUCT.pack(Event.CANCELLED, 0, ticket, 0, 0, 0, 0, 0, 0), b"")

    def _add_result(self, ticket: int, payload: bytes) -> None:
        self.add(1, RECORD_STRUCT.pack(Event.RESULT, 0, ticket, 0, 0, 0, 0, 0, len(payload)), payload)

    def _take_memory(self, more_bytes: int) -> None:
        size = self.payload_bytes + self._message_bytes + more_bytes
        if size > self._memory.granted:
            self._memory.fit(size)

    # ---- what the guest takes ----

    def take(self, max_records: int) -> bytes:
        """Remove at most `max_records` records (0: no limit), and return them as one delivery."""
        chunks = self._chunks
        if len(chunks) == 1 and not self._taken and (chunks[0][0] <= max_records or not max_records):
            count, records, payload, from_control = chunks.popleft()
            self.count = self.payload_bytes = 0
            self.from_control += count * from_control
            if self._memory.granted > FREE_BYTES:
                self._memory.fit(self._message_bytes)
            if self._under_way:
                self._given(records)
            return pack_delivery(count, records, payload)
        return self._take_merged(max_records or self.count)

    def _take_merged(self, max_records: int) -> bytes:
        records, payload = bytearray(), bytearray()
        taken = 0
        while self._chunks and taken < max_records:
            whole, rows, chunk_payload, from_control = self._chunks[0]
            first, count = self._taken, whole - self._taken
            size = count * RECORD_BYTES + len(chunk_payload)
            if taken and len(records) + len(payload) + size > MAX_DELIVERY_BYTES:
                break
            if count > max_records - taken:
                count = max_records - taken
                self._taken = first + count
            else:
                self._chunks.popleft()
                self._taken = 0
                self.payload_bytes -= len(chunk_payload)
            rows = rows[first * RECORD_BYTES : (first + count) * RECORD_BYTES]
            _append(records, payload, rows, chunk_payload)
            taken += count
            self.from_control += count * from_control
        self.count -= taken
        if self._memory.granted > FREE_BYTES:
            self._memory.fit(self.payload_bytes + self._message_bytes)
        if self._under_way:
            self._given(records)
        return pack_delivery(taken, bytes(records), bytes(payload))

    def _given(self, records: bytes | bytearray) -> None:
        for row in RECORD_STRUCT.iter_unpack(records):
            self._under_way.pop(row[_TICKET], None)


def _append(records: bytearray, payload: bytearray, rows: bytes, rows_payload: bytes) -> None:
    """Add rows with just the part of `rows_payload` that they point into (a chunk may be taken bit by bit)."""
    start = len(records)
    records += rows
    spans = [row[7:9] for row in RECORD_STRUCT.iter_unpack(rows)]
    if not any(offset or length for offset, length in spans):
        return
    low = min((o for o, n in spans if n), default=0)
    high = max((o + n for o, n in spans if n), default=0)
    shift = len(payload) - low
    for i, (offset, length) in enumerate(spans):
        _OFFSET.pack_into(records, start + i * RECORD_BYTES + _OFFSET_AT, offset + shift if length else 0)
    payload += rows_payload[low:high]


def _nothing() -> None:
    """No-op callback of a closed inbox."""
