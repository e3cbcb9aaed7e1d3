"""Messages between programs of one tenant: topics, subscriptions and the messages that wait in these.

A message reaches the subscriptions that exist when it is broadcast, in the order of the broadcasts. A subscriber that
doesn't take its messages loses the oldest ones, and learns how many.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

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

Safe = Callable[[], bool]
"""Says whether an answer that was given can't be lost any more, whoever dies."""
Answer = Callable[[int, int, bytes], Safe | None]
"""Takes the ticket of a request for a message, the number of messages lost before it, and the message.

Returns None if the next request is the only sign that the answer has come.
"""
Gone = Callable[["Subscription", int, int], None]
"""Takes a subscription, and the places in it and among all messages of a message that it never needs again."""


class Message(NamedTuple):
    """A message of one subscription."""

    at: int
    """How many messages reached the subscription before."""
    number: int
    """Its place among all messages."""
    data: bytes


@dataclass(slots=True, eq=False)
class Subscription:
    """One program's subscription to a topic.

    What was handed out stays known until it can't be lost on its way, so that it can be handed out again.
    """

    topic: tuple[str, str]  # tenant and topic
    owner: tuple[str, int]  # the program's id, and the subscription's number
    gone: Gone | None  # None: nothing is kept
    answer: Answer | None = None  # None: its program has not come back to this control
    messages: deque[Message] = field(default_factory=deque)
    held_bytes: int = 0
    next_index: int = 0
    taken: int = 0  # messages that were handed out or lost before the last one that was handed out, with it
    handed: deque[tuple[Message, Safe | None]] = field(default_factory=deque)
    ticket: int | None = None  # of the request that waits for a message
    is_over: bool = False

    def reserve(self) -> int:
        """Return the index of the next message, which comes with `put`."""
        self.next_index += 1
        return self.next_index - 1

    def put(self, message: Message) -> None:
        """Answer the request that waits, or keep the message for the next request. The oldest ones give way."""
        if self.is_over:
            self._forget(message)
            return
        if self.ticket is not None:
            ticket, self.ticket = self.ticket, None
            self._hand(ticket, message)
            return
        self.messages.append(message)
        self.held_bytes += len(message.data)
        while len(self.messages) > MAX_WAITING or self.held_bytes > MAX_WAITING_BYTES:
            self._forget(self._pop())

    def ask(self, ticket: int) -> None:
        """Answer with the oldest message, now or when one comes.

        Raises:
            ResourceInUse: a request waits already.
        """
        if self.ticket is not None:
            raise ResourceInUse(kind="a request for the next message, with ticket", id=self.ticket)
        while self.handed and ((safe := self.handed[0][1]) is None or safe()):
            self._forget(self.handed.popleft()[0])
        if self.messages:
            self._hand(ticket, self._pop())
        else:
            self.ticket = ticket

    def resume(self, answer: Answer, taken: int, safe: Safe | None) -> None:
        """Take its program back, which was told of all messages before `taken`, as `safe` says."""
        self.answer, self.ticket = answer, None
        self.taken, self.next_index = taken, max(taken, self.next_index)
        while self.messages and self.messages[0].at < taken:
            self.handed.append((self._pop(), safe))

    def end(self) -> None:
        """Forget all messages."""
        self.is_over = True
        for message in [*(message for message, _ in self.handed), *self.messages]:
            self._forget(message)
        self.messages.clear()
        self.handed.clear()

    def _hand(self, ticket: int, message: Message) -> None:
        lost, self.taken = message.at - self.taken, message.at + 1
        assert self.answer is not None  # nobody asks for a program that isn't here
        safe = self.answer(ticket, lost, message.data)
        if self.gone is not None:
            self.handed.append((message, safe))

    def _pop(self) -> Message:
        message = self.messages.popleft()
        self.held_bytes -= len(message.data)
        return message

    def _forget(self, message: Message) -> None:
        if self.gone is not None:
            self.gone(self, message.at, message.number)


@dataclass(slots=True)
class Subscribed:
    """What a program's history says of one of its subscriptions."""

    topic: bytes
    taken: int = 0  # messages that the program was told of, and those that were lost before these


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

    def __init__(self, gone: Gone | None = None) -> None:
        """`gone` hears of messages that a subscription never needs again."""
        self._gone = gone
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
        self.add(tenant, program_id, number, topic).answer = answer

    def add(self, tenant: str, program_id: str, number: int, topic: str) -> Subscription:
        """Make a subscription whose program isn't here, or not yet."""
        made = Subscription((tenant, topic), (program_id, number), self._gone)
        self._of_program.setdefault(program_id, {})[number] = made
        self._of_topic.setdefault(made.topic, {})[program_id, number] = made
        self._count[tenant] = self._count.get(tenant, 0) + 1
        return made

    def resume(
        self, tenant: str, program_id: str, number: int, topic: str, answer: Answer, taken: int, safe: Safe | None
    ) -> None:
        """Let a program that comes from another control go on with a subscription, behind what it has taken."""
        found = self._of_program.get(program_id, {}).get(number)
        if found is not None and found.topic != (tenant, topic):
            self._drop(program_id, number, found)
            found = None
        (found or self.add(tenant, program_id, number, topic)).resume(answer, taken, safe)

    def of_program(self, program_id: str) -> dict[int, Subscription]:
        """Return a program's subscriptions, by number."""
        return dict(self._of_program.get(program_id, {}))

    def absent(self) -> list[Subscription]:
        """Return the subscriptions whose programs are not here."""
        return [each for mine in self._of_program.values() for each in mine.values() if each.answer is None]

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
            UnknownResource: the program has no such subscription, or only an earlier run of it had one.
            ResourceInUse: a request waits already.
        """
        found = self._find(program_id, number)
        if found.answer is None:
            raise UnknownResource(kind=_KIND, id=number)
        found.ask(ticket)

    def broadcast(self, tenant: str, topic: str, message: bytes) -> int:
        """Put a message to all subscriptions of a tenant's topic, the sender's own included. Returns their number.

        Raises:
            InvalidArgument: the topic is empty or too long, or the message is too long.
        """
        recipients = self.recipients(tenant, topic, message)
        for each in recipients:
            each.put(Message(each.reserve(), 0, message))
        return len(recipients)

    def publish(
        self, tenant: str, topic: str, message: bytes, sender: tuple[str, int], tell: Callable[[int], None]
    ) -> None:
        """Broadcast for a program, and tell it the number of subscriptions. Raises what `broadcast` raises."""
        del sender
        tell(self.broadcast(tenant, topic, message))

    def when_ready(self, work: Callable[[], None], tenant: str | None = None) -> None:
        """Do work on topics now. `tenant`: whose call it is."""
        del tenant
        work()

    def recipients(self, tenant: str, topic: str, message: bytes) -> list[Subscription]:
        """Return the subscriptions that a message reaches.

        Raises:
            InvalidArgument: the topic is empty or too long, or the message is too long.
        """
        _check(topic)
        if len(message) > MAX_MESSAGE_BYTES:
            told = f"{len(message)} bytes; at most {MAX_MESSAGE_BYTES} are allowed"
            raise InvalidArgument(argument="message", detail=told)
        return list(self._of_topic.get((tenant, topic), {}).values())

    def returned(self, teller: str) -> None:
        """No-op: all broadcasts were answered."""

    def leave(self, program_id: str, teller: str = "") -> None:
        """End all subscriptions of a program, and forget the answers to the broadcasts of its run (`store.teller`)."""
        for number, each in list(self._of_program.get(program_id, {}).items()):
            self._drop(program_id, number, each)

    def _find(self, program_id: str, number: int) -> Subscription:
        found = self._of_program.get(program_id, {}).get(number)
        if found is None:
            raise UnknownResource(kind=_KIND, id=number)
        return found

    def _drop(self, program_id: str, number: int, ended: Subscription) -> None:
        ended.end()
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
