"""What programs of one tenant share: the store's calls and messages on topics. These calls belong to no queue."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from tartlet_common.abi import Op, Record
from tartlet_common.capabilities import check_shared
from tartlet_common.errors.base import TartletError
from tartlet_common.errors.registry import InvalidArgument, Overloaded
from tartlet_control.core.lifecycle import Lifecycle
from tartlet_control.tables.outbox import CANCELLED, RESULT
from tartlet_control.tables.programs import ProgramState
from tartlet_control.tables.shared.store import Request, checked, teller
from tartlet_control.tables.shared.topics import Answer, Safe, Subscribed

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

    def run(self, program: ProgramState, record: Record, payload: memoryview) -> None:
        """Execute one record of `SHARED_OPS`; `payload` is the record's own bytes."""
        try:
            if record.op < Op.BROADCAST:
                self._ask_store(program, record, bytes(payload))
            else:
                work = partial(self._try_on_topic, program, record, bytes(payload))
                self._lifecycle.topics.when_ready(work, program.tenant)
        except TartletError as e:
            self._fail(program, record, e)

    def _ask_store(self, program: ProgramState, record: Record, payload: bytes) -> None:
        if program.session.outbox.shared_bytes(program.handle) > MAX_UNSENT_BYTES:
            raise Overloaded(what="unsent answers of the store, in bytes", limit=MAX_UNSENT_BYTES)
        key, value = _split("key", record.a, payload) if record.op == Op.STORE_SET else (_text("key", payload), b"")
        who = teller(program.id, program.run)
        request = Request(record.op, key, value, who, record.ticket if record.flags & 1 else 0)

        def answer(found: int, value: bytes, error: TartletError | None) -> None:
            if not program.live:
                return
            if error is not None:
                self._fail(program, record, error)
                return
            program.session.outbox.count_shared(program.handle, len(value))
            _answer(program, record, found, payload=value)

        self._lifecycle.store.ask(program.tenant, checked(request), answer)

    def resume(self, program: ProgramState, subscriptions: Mapping[int, Subscribed]) -> None:
        """Let a program that comes from another control go on with its subscriptions, and with no others."""
        who = teller(program.id, program.run)
        self._lifecycle.store.returned(who)
        self._lifecycle.topics.returned(who)

        def work() -> None:
            topics = self._lifecycle.topics
            if not program.live:
                return
            safe = _safe(program)
            for number in topics.of_program(program.id).keys() - subscriptions.keys():
                topics.unsubscribe(program.id, number)
            for number, each in subscriptions.items():
                topic = _text("topic", each.topic)
                check_shared(program.grants, "topics", topic)
                topics.resume(program.tenant, program.id, number, topic, _hand(program), each.taken, safe)

        def try_to() -> None:
            try:
                work()
            except TartletError as e:
                self._lifecycle.kill(program, e)

        self._lifecycle.topics.when_ready(try_to)

    def _try_on_topic(self, program: ProgramState, record: Record, payload: bytes) -> None:
        if not program.live:
            return
        try:
            self._on_topic(program, record, payload)
        except TartletError as e:
            self._fail(program, record, e)

    def _on_topic(self, program: ProgramState, record: Record, payload: bytes) -> None:
        topics = self._lifecycle.topics
        match record.op:
            case Op.BROADCAST:
                topic, message = _split("topic", record.a, payload)
                check_shared(program.grants, "topics", topic)
                sender = (teller(program.id, program.run), record.ticket if record.flags & 1 else 0)
                tell = partial(_answer, program, record)
                topics.publish(program.tenant, topic, message, sender, tell)
            case Op.SUBSCRIBE:
                topic = _text("topic", payload)
                check_shared(program.grants, "topics", topic)
                topics.subscribe(program.tenant, program.id, record.a, topic, _hand(program))
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


def _hand(program: ProgramState) -> Answer:
    def hand(ticket: int, lost: int, message: bytes) -> Safe | None:
        program.session.outbox.deliver(program.handle, RESULT, 1, ticket, 0, lost, payload=message)
        return _safe(program)

    return hand


def _safe(program: ProgramState) -> Safe | None:
    """Return what says whether the program's journal has all that the program was told until now."""
    answers = program.answers
    if answers is None:
        return None
    last = answers.last
    return lambda: answers.stored >= last


def _answer(program: ProgramState, record: Record, a: int = 0, payload: bytes = b"") -> None:
    if record.flags & 1 and program.live:
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
