"""The store and the topics of `MiniHost`: those of control, for one tenant."""

from __future__ import annotations

from collections.abc import Callable

from tartlet_common.abi import Event, Op
from tartlet_common.errors.registry import TartletError
from tartlet_control.tables.shared.store import MemoryStore, Request, checked
from tartlet_control.tables.shared.topics import Topics

TENANT = "t"
Tell = Callable[[int, Event, int, bytes], None]
"""Takes a ticket, the event, its `a` and its payload."""


class MiniSharing:
    """Executes the calls on the store and on topics."""

    def __init__(self, tell: Tell) -> None:
        self.store = MemoryStore()
        self.topics = Topics()
        self._tell = tell

    def run(self, op: Op, ticket: int, a: int, payload: bytes) -> TartletError | None:
        """Execute a call and tell its answer; returns why it is refused."""
        try:
            if op < Op.BROADCAST:
                self._ask(op, ticket, a, payload)
            else:
                self._on_topic(op, ticket, a, payload)
        except TartletError as e:
            return e
        return None

    def _ask(self, op: Op, ticket: int, a: int, payload: bytes) -> None:
        split = a if op is Op.STORE_SET else len(payload)

        def answer(found: int, value: bytes, error: TartletError | None) -> None:
            if error is not None:
                raise error
            self._tell(ticket, Event.RESULT, found, value)

        self.store.ask(TENANT, checked(Request(op, payload[:split].decode(), payload[split:])), answer)

    def _on_topic(self, op: Op, ticket: int, a: int, payload: bytes) -> None:
        def hand(asked: int, lost: int, message: bytes) -> None:
            self._tell(asked, Event.RESULT, lost, message)

        told = 0
        match op:
            case Op.NEXT_MESSAGE:
                self.topics.next_message("p", a, ticket)
                return
            case Op.BROADCAST:
                told = self.topics.broadcast(TENANT, payload[:a].decode(), payload[a:])
            case Op.SUBSCRIBE:
                self.topics.subscribe(TENANT, "p", a, payload.decode(), hand)
            case _:
                waiting = self.topics.unsubscribe("p", a)
                if waiting is not None:
                    self._tell(waiting, Event.CANCELLED, 0, b"")
        self._tell(ticket, Event.RESULT, told, b"")
