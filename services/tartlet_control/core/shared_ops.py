"""What programs of one tenant share: the store's calls and messages on topics. These calls belong to no queue."""

from __future__ import annotations

from typing import Final

from tartlet_common.abi import Op, Record
from tartlet_common.capabilities import check_shared
from tartlet_common.errors.base import TartletError
from tartlet_common.errors.registry import InvalidArgument, Overloaded
from tartlet_control.core.lifecycle import Lifecycle
from tartlet_control.tables.outbox import CANCELLED, RESULT
from tartlet_control.tables.programs import ProgramState
from tartlet_control.tables.shared.store import Request, checked

SHARED_OPS: Final = frozenset(
    {
        Op.STORE_GET,
        Op.STORE_SET,
        Op.STORE_DELETE,
        Op.STORE_EXISTS,
        Op.STORE_LIST_KEYS,
        Op.BROADCAST,
        Op.SUBSCRIBE,
        Op.UNSUBSCRIBE,
        Op.NEXT_MESSAGE,
    }
)
MAX_UNSENT_BYTES: Final = 4 << 20
"""Answers of the store that wait to be sent to one program; further requests are refused."""


class SharedOps:
    """Executes the calls for programs, each for its own tenant alone.

    An awaited call that fails is answered with its error. A failed call that nobody awaits ends its program, as a
    failed call that the runtime answers does.
    """

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._topics = lifecycle.topics

    def run(self, program: ProgramState, record: Record, payload: memoryview) -> None:
        """Execute one record of `SHARED_OPS`; `payload` is the record's own bytes."""
        try:
            if record.op < Op.BROADCAST:
                self._ask_store(program, record, bytes(payload))
            else:
                self._on_topic(program, record, bytes(payload))
        except TartletError as e:
            self._fail(program, record, e)

    def _ask_store(self, program: ProgramState, record: Record, payload: bytes) -> None:
        if program.session.outbox.shared_bytes(program.handle) > MAX_UNSENT_BYTES:
            raise Overloaded(what="unsent answers of the store, in bytes", limit=MAX_UNSENT_BYTES)
        key, value = _split("key", record.a, payload) if record.op == Op.STORE_SET else (_text("key", payload), b"")
        request = Request(record.op, key, value, program.id, record.ticket if record.flags & 1 else 0)

        def answer(found: int, value: bytes, error: TartletError | None) -> None:
            if not program.live:
                return
            if error is not None:
                self._fail(program, record, error)
                return
            program.session.outbox.count_shared(program.handle, len(value))
            _answer(program, record, found, payload=value)

        self._lifecycle.store.ask(program.tenant, checked(request), answer)

    def _on_topic(self, program: ProgramState, record: Record, payload: bytes) -> None:
        topics = self._topics
        match record.op:
            case Op.BROADCAST:
                topic, message = _split("topic", record.a, payload)
                check_shared(program.grants, "topics", topic)
                _answer(program, record, topics.broadcast(program.tenant, topic, message))
            case Op.SUBSCRIBE:

                def hand(ticket: int, lost: int, message: bytes) -> None:
                    program.session.outbox.deliver(program.handle, RESULT, 1, ticket, 0, lost, payload=message)

                topic = _text("topic", payload)
                check_shared(program.grants, "topics", topic)
                topics.subscribe(program.tenant, program.id, record.a, topic, hand)
                _answer(program, record)
            case Op.UNSUBSCRIBE:
                ticket = topics.unsubscribe(program.id, record.a)
                if ticket is not None:
                    program.session.outbox.deliver(program.handle, CANCELLED, 1, ticket, 0)
                _answer(program, record)
            case _:  # NEXT_MESSAGE
                if not record.flags & 1:  # else the request would take a message that nobody gets
                    raise InvalidArgument(argument="next_message", detail="it must be awaited")
                topics.next_message(program.id, record.a, record.ticket)

    def _fail(self, program: ProgramState, record: Record, error: TartletError) -> None:
        if record.flags & 1:
            program.session.outbox.fail(program.handle, record.ticket, record.queue, error, answers=True)
        else:
            self._lifecycle.kill(program, error)


def _answer(program: ProgramState, record: Record, a: int = 0, payload: bytes = b"") -> None:
    if record.flags & 1:
        program.session.outbox.deliver(program.handle, RESULT, 1, record.ticket, record.queue, a, payload=payload)


def _split(name: str, length: int, payload: bytes) -> tuple[str, bytes]:
    """Return the text of `length` bytes that a payload begins with, and the rest."""
    if length > len(payload):
        raise InvalidArgument(argument=name, detail=f"{length} bytes of a payload of {len(payload)}")
    return _text(name, payload[:length]), payload[length:]


def _text(name: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as e:
        raise InvalidArgument(argument=name, detail=f"not UTF-8: {e}") from e
