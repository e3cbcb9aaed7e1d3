"""Topics whose messages outlive control: a message is handed out, and its broadcast answered, once a Redis has it.

Subscriptions, messages and the places of messages in subscriptions are kept. A place is forgotten when its message
can't be lost on its way to the program, and a message with its last place. What programs have taken isn't kept: their
histories say so (`resume`). `keeper.Keeper` reads and writes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Final

from tartlet_control.tables.shared.topics import Answer, Message, Safe, Subscription, Topics
from tartlet_control.values.keeper import Keeper, nothing
from tartlet_control.values.values import Change, Found, Values

TOLD: Final = 512
"""Answers to broadcasts that are kept for each program."""
_AT_ONCE: Final = 4096
_SUBSCRIPTION, _MESSAGE, _PLACE = "s/", "m/", "p/"


class KeptTopics(Topics):
    """Topics that a Redis keeps."""

    def __init__(self, values: Values) -> None:
        """Begin unread. `run` does the work."""
        super().__init__(self._let_go)
        self.keeper = Keeper(values, "the messages on topics", most_told=TOLD, at_once=_AT_ONCE)
        self.keeper.kept = self
        self._number = 1  # of the next message
        self._places: dict[int, tuple[str, int]] = {}  # of each message: tenant, and in how many subscriptions it is
        self._found: list[Found] = []

    # ---- what programs do -------------------------------------------------------------------------------------------

    def when_ready(self, work: Callable[[], None], tenant: str | None = None) -> None:
        """Do work on topics once the messages are read. `tenant`: whose call it is; None: it is nobody's call.

        Raises:
            Overloaded: too much of the tenant's waits for that.
        """
        if tenant is not None and not self.keeper.is_loaded:
            self.keeper.room.check(tenant)
        self.keeper.when_read(work, tenant)

    def publish(
        self, tenant: str, topic: str, message: bytes, sender: tuple[str, int], tell: Callable[[int], None]
    ) -> None:
        """Broadcast for a program, and tell it once the message is stored. Raises what `broadcast` raises.

        Raises:
            Overloaded: too much of the tenant's waits for the Redis.
        """
        self.keeper.room.check(tenant)
        recipients = self.recipients(tenant, topic, message)
        program_id, ticket = sender
        known = self.keeper.answers.find(program_id, ticket)
        if known is not None:  # it was stored, and control died before the program had heard
            self.keeper.write_later(tenant, [], partial(tell, known))
            return
        number = self._number
        places = [(each, each.reserve()) for each in recipients]
        notes = [self.keeper.answers.add(program_id, ticket, len(places))] if ticket else []
        changes = list[Change]()
        if places:
            self._number += 1
            self._places[number] = tenant, len(places)
            changes.append(Change(tenant, _key(number), message))
            changes += [Change(tenant, _place(each, index), _hex(number)) for each, index in places]

        def stored() -> None:
            for each, index in places:
                each.put(Message(index, number, message))
            tell(len(places))

        then = stored if places else partial(tell, 0)  # which doesn't keep the message
        self.keeper.write_later(tenant, changes, then, notes)

    def subscribe(self, tenant: str, program_id: str, number: int, topic: str, answer: Answer) -> None:
        """Subscribe a program. Raises what topics in memory raise.

        Raises:
            Overloaded: too much of the tenant's waits for the Redis.
        """
        self.keeper.room.check(tenant)
        self._leave_behind(program_id)
        super().subscribe(tenant, program_id, number, topic, answer)
        self._set(tenant, _owner(program_id, number), topic.encode())

    def unsubscribe(self, program_id: str, number: int) -> int | None:
        """End a subscription. Raises what topics in memory raise."""
        tenant = self._find(program_id, number).topic[0]
        ticket = super().unsubscribe(program_id, number)
        self._set(tenant, _owner(program_id, number), None)
        return ticket

    def resume(
        self, tenant: str, program_id: str, number: int, topic: str, answer: Answer, taken: int, safe: Safe | None
    ) -> None:
        """Let a program that comes from another control go on with a subscription, behind what it has taken."""
        super().resume(tenant, program_id, number, topic, answer, taken, safe)
        self._set(tenant, _owner(program_id, number), topic.encode())

    def returned(self, teller: str) -> None:
        """Note that a run has come back, which may broadcast again what was answered before control died."""
        self.keeper.when_read(partial(self.keeper.returned, teller), None)

    def leave(self, program_id: str, teller: str = "") -> None:
        """End all subscriptions of a program, and forget its broadcasts: nobody asks for them again."""
        self.keeper.when_read_or_claimed(partial(self._leave, program_id, teller or program_id))

    def _leave(self, program_id: str, teller: str) -> None:
        for number in self.of_program(program_id):
            self.unsubscribe(program_id, number)
        self.keeper.forget(teller)

    def _leave_behind(self, program_id: str) -> None:
        """End what an earlier run has left: a program that goes on has taken back all its subscriptions by then."""
        for number, each in self.of_program(program_id).items():
            if each.answer is None:
                self.unsubscribe(program_id, number)

    def _let_go(self, each: Subscription, index: int, number: int) -> None:
        """Forget a place, and its message if that was the last one."""
        tenant, left = self._places[number]
        changes = [Change(tenant, _place(each, index), None)]
        if left > 1:
            self._places[number] = tenant, left - 1
        else:
            del self._places[number]
            changes.append(Change(tenant, _key(number), None))
        self.keeper.write_later(tenant, changes, nothing)

    def _set(self, tenant: str, key: str, value: bytes | None) -> None:
        self.keeper.write_later(tenant, [Change(tenant, key, value)], nothing)

    # ---- what was kept (`keeper.Kept`) ------------------------------------------------------------------------------

    def begin(self) -> None:
        """Forget what was read: reading begins."""
        self._found = []

    def take(self, found: Found) -> None:
        """Keep an entry until all are there."""
        self._found.append(found)

    def read_all(self) -> None:
        """Make the subscriptions that were kept, each with its messages in order. What makes no sense is deleted."""
        messages: dict[int, tuple[str, bytes]] = {}
        places: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        wrong: list[tuple[str, str]] = []
        for tenant, key, value in ((each.tenant, each.key, each.value) for each in self._found):
            try:
                if key.startswith(_SUBSCRIPTION):
                    _, program_id, name = key.split("/")
                    self.add(tenant, program_id, int(name), value.decode())
                elif key.startswith(_MESSAGE):
                    messages[int(key.removeprefix(_MESSAGE), 16)] = tenant, value
                else:
                    owner, _, place = key.removeprefix(_PLACE).rpartition("/")
                    places[tenant, owner].append((int(place), int(value, 16)))
            except ValueError:
                wrong.append((tenant, key))
        for (tenant, owner), mine in places.items():
            program_id, _, name = owner.rpartition("/")
            each = self.of_program(program_id).get(int(name)) if name.isdecimal() else None
            for index, at in sorted(mine):
                if each is None or each.topic[0] != tenant or at not in messages:
                    wrong.append((tenant, f"{_PLACE}{owner}/{index}"))
                    continue
                each.messages.append(Message(index, at, messages[at][1]))
                each.held_bytes += len(messages[at][1])
                each.next_index = index + 1
                self._places[at] = tenant, self._places.get(at, (tenant, 0))[1] + 1
        wrong += [(tenant, _key(number)) for number, (tenant, _) in messages.items() if number not in self._places]
        self._number = max(messages, default=0) + 1
        for tenant, key in wrong:
            self._set(tenant, key, None)
        self._found = []

    def claim(self) -> None:
        """End the subscriptions of programs that haven't come back."""
        for each in self.absent():
            self.unsubscribe(*each.owner)


def _hex(number: int) -> bytes:
    return f"{number:x}".encode()


def _key(number: int) -> str:
    return f"{_MESSAGE}{number:x}"


def _owner(program_id: str, number: int) -> str:
    return f"{_SUBSCRIPTION}{program_id}/{number}"


def _place(each: Subscription, index: int) -> str:
    program_id, number = each.owner
    return f"{_PLACE}{program_id}/{number}/{index}"
