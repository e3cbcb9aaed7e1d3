"""Messages between programs of one tenant: topics, subscriptions and the messages that wait in these.

A message reaches the subscriptions that exist when it is broadcast, in the order of the broadcasts. A subscriber that
doesn't take its messages loses the oldest ones, and learns how many.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tartlet_common.errors.registry import InvalidArgument, ResourceInUse, ResourceQuotaExceeded, UnknownResource

MAX_TOPIC_BYTES: Final = 256
MAX_MESSAGE_BYTES: Final = 64 << 10
MAX_WAITING: Final = 256
"""Messages that wait in one subscription."""
MAX_WAITING_BYTES: Final = 256 << 10
"""Their bytes."""
MAX_OF_PROGRAM: Final = 64
"""Subscriptions of one program."""
MAX_OF_TENANT: Final = 1024
"""Subscriptions of one tenant, which together with the bytes of each bound what waits for a tenant."""
_KIND: Final = "subscription"

Answer = Callable[[int, int, bytes], None]
"""Takes the ticket of a request for a message, the number of messages lost before it, and the message."""


@dataclass(slots=True)
class Subscription:
    """One program's subscription to a topic."""

    topic: tuple[str, str]  # tenant and topic
    answer: Answer
    messages: deque[bytes] = field(default_factory=deque)
    held_bytes: int = 0
    lost: int = 0  # messages since the last one that was taken
    ticket: int | None = None  # of the request that waits for a message

    def put(self, message: bytes) -> None:
        """Answer the request that waits, or keep the message for the next request."""
        if self.ticket is not None:
            ticket, self.ticket = self.ticket, None
            self._hand(ticket, message)
            return
        self.messages.append(message)
        self.held_bytes += len(message)
        while len(self.messages) > MAX_WAITING or self.held_bytes > MAX_WAITING_BYTES:
            self.held_bytes -= len(self.messages.popleft())
            self.lost += 1

    def ask(self, ticket: int) -> None:
        """Answer with the oldest message, now or when one comes.

        Raises:
            ResourceInUse: a request waits already.
        """
        if self.ticket is not None:
            raise ResourceInUse(kind="a request for the next message, with ticket", id=self.ticket)
        if self.messages:
            message = self.messages.popleft()
            self.held_bytes -= len(message)
            self._hand(ticket, message)
        else:
            self.ticket = ticket

    def _hand(self, ticket: int, message: bytes) -> None:
        lost, self.lost = self.lost, 0
        self.answer(ticket, lost, message)


class Topics:
    """All subscriptions.

    Example:
        >>> topics, told = Topics(), []
        >>> topics.subscribe("a", "program", 1, "news", lambda *answer: told.append(answer))
        >>> topics.next_message("program", 1, ticket=7)
        >>> topics.broadcast("a", "news", b"hi"), topics.broadcast("b", "news", b"not for a")
        (1, 0)
        >>> told
        [(7, 0, b'hi')]
    """

    def __init__(self) -> None:
        self._of_program: dict[str, dict[int, Subscription]] = {}
        self._of_topic: dict[tuple[str, str], dict[tuple[str, int], Subscription]] = {}
        self._count: dict[str, int] = {}  # subscriptions of a tenant

    def subscribe(self, tenant: str, program_id: str, number: int, topic: str, answer: Answer) -> None:
        """Subscribe a program to a topic of its tenant. The program has chosen the subscription's number.

        Raises:
            InvalidArgument: the topic is empty or too long.
            ResourceInUse: the program has a subscription of that number.
            ResourceQuotaExceeded: the program or the tenant has as many subscriptions as it may.
        """
        _check(topic)
        mine = self._of_program.get(program_id, {})
        if number in mine:
            raise ResourceInUse(kind=_KIND, id=number)
        for held, limit in ((len(mine), MAX_OF_PROGRAM), (self._count.get(tenant, 0), MAX_OF_TENANT)):
            if held >= limit:
                raise ResourceQuotaExceeded(held=held, kind="subscriptions", asked=1, limit=limit)
        made = Subscription((tenant, topic), answer)
        self._of_program.setdefault(program_id, {})[number] = made
        self._of_topic.setdefault(made.topic, {})[program_id, number] = made
        self._count[tenant] = self._count.get(tenant, 0) + 1

    def unsubscribe(self, program_id: str, number: int) -> int | None:
        """End a subscription. Returns the ticket of the request that waited in it, None if none did.

        Raises:
            UnknownResource: the program has no such subscription.
        """
        ended = self._find(program_id, number)
        self._drop(program_id, number, ended)
        return ended.ticket

    def next_message(self, program_id: str, number: int, ticket: int) -> None:
        """Answer a request with the subscription's next message, now or when one comes.

        Raises:
            UnknownResource: the program has no such subscription.
            ResourceInUse: a request waits already.
        """
        self._find(program_id, number).ask(ticket)

    def broadcast(self, tenant: str, topic: str, message: bytes) -> int:
        """Put a message to all subscriptions of a tenant's topic, the sender's own included. Returns their number.

        Raises:
            InvalidArgument: the topic is empty or too long, or the message is too long.
        """
        _check(topic)
        if len(message) > MAX_MESSAGE_BYTES:
            told = f"{len(message)} bytes; at most {MAX_MESSAGE_BYTES} are allowed"
            raise InvalidArgument(argument="message", detail=told)
        subscriptions = self._of_topic.get((tenant, topic), {})
        for each in subscriptions.values():
            each.put(message)
        return len(subscriptions)

    def leave(self, program_id: str) -> None:
        """End all subscriptions of a program."""
        for number, each in list(self._of_program.get(program_id, {}).items()):
            self._drop(program_id, number, each)

    def _find(self, program_id: str, number: int) -> Subscription:
        found = self._of_program.get(program_id, {}).get(number)
        if found is None:
            raise UnknownResource(kind=_KIND, id=number)
        return found

    def _drop(self, program_id: str, number: int, ended: Subscription) -> None:
        tenant = ended.topic[0]
        mine, others = self._of_program[program_id], self._of_topic[ended.topic]
        del mine[number], others[program_id, number]
        if not mine:
            del self._of_program[program_id]
        if not others:
            del self._of_topic[ended.topic]
        self._count[tenant] -= 1
        if not self._count[tenant]:
            del self._count[tenant]


def _check(topic: str) -> None:
    size = len(topic.encode())
    if not 1 <= size <= MAX_TOPIC_BYTES:
        raise InvalidArgument(argument="topic", detail=f"{size} bytes; 1 to {MAX_TOPIC_BYTES} are allowed")
