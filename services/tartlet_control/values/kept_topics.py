"""Topics whose messages outlive control: a message is handed out, and its broadcast answered, once a Redis has it.

Subscriptions, messages and the places of messages in subscriptions are kept. A place is forgotten when its message
can't be lost on its way to the program, and a message with its last place. What programs have taken isn't kept: their
histories say so (`resume`). Broadcasts that were answered twice because control died have one effect, as writes to the
store have.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from tartlet_common.errors.registry import Overloaded
from tartlet_control.tables.shared.topics import Answer, Message, Safe, Subscription, Topics
from tartlet_control.values.values import Change, Found, Values, ValuesAway

log = logging.getLogger("tartlet.control")

MAX_WAITING: Final = 16_384
"""Calls that wait for the Redis, at most."""
MAX_WAITING_BYTES: Final = 32 << 20
"""Bytes that they take, at most."""
TOLD: Final = 512
"""Answers to broadcasts that are kept for each program."""
TOLD_PROGRAMS: Final = 16_384
READ_S: Final = 30.0
LOAD_S: Final = 2.0
"""Control begins to serve after so many seconds, though the messages aren't read yet."""
RETRY_S: Final = (0.1, 2.0)
"""Seconds between attempts to reach a Redis that is away: at first, and at most."""
CLAIM_S: Final = 600.0
"""Seconds for which a new control keeps the subscriptions of programs that haven't come back."""
_AT_ONCE: Final = 4096  # changes, beside those of the last call: others wait for Redis, and for this process, meanwhile
_AT_ONCE_BYTES: Final = 4 << 20
_CHANGE_BYTES: Final = 256  # that a change takes beside its value: a message has one for each subscription
_SUBSCRIPTION, _MESSAGE, _PLACE = "s/", "m/", "p/"


class _Waiting(NamedTuple):
    """What is to be stored, and what happens then."""

    changes: list[Change]
    then: Callable[[], None]

    @property
    def size(self) -> int:
        return sum(change.size for change in self.changes) + _CHANGE_BYTES * (1 + len(self.changes))


class KeptTopics(Topics):
    """Topics that a Redis keeps."""

    def __init__(self, values: Values) -> None:
        """Begin unread. `run` does the work."""
        super().__init__(self._let_go)
        self._values = values
        self._number = 1  # of the next message
        self._places: dict[int, tuple[str, int]] = {}  # of each message: tenant, and in how many subscriptions it is
        self._told: dict[str, dict[int, int]] = {}  # of each program's last broadcasts: how many they reached
        self._loaded = False
        self._early: deque[Callable[[], None]] = deque()  # work that came before the messages were read
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._work = asyncio.Event()
        self._on_answered: Callable[[], None] = _nothing
        self._claims: asyncio.TimerHandle | None = None

    # ---- what programs do -------------------------------------------------------------------------------------------

    def when_ready(self, work: Callable[[], None]) -> None:
        """Do work on topics once the messages are read.

        Raises:
            Overloaded: too much waits for that.
        """
        if self._loaded:
            work()
        elif len(self._early) >= MAX_WAITING:
            raise Overloaded(what="calls on topics that wait for the store's Redis", limit=MAX_WAITING)
        else:
            self._early.append(work)

    def publish(
        self, tenant: str, topic: str, message: bytes, sender: tuple[str, int], tell: Callable[[int], None]
    ) -> None:
        """Broadcast for a program, and tell it once the message is stored. Raises what `broadcast` raises.

        Raises:
            Overloaded: too much waits for the Redis.
        """
        if len(self._waiting) >= MAX_WAITING or self._waiting_bytes > MAX_WAITING_BYTES:
            raise Overloaded(what="messages that wait for the store's Redis", limit=MAX_WAITING)
        recipients = self.recipients(tenant, topic, message)
        program_id, ticket = sender
        known = self._told.get(program_id, {}).get(ticket)
        if known is not None:  # it was stored, and control died before the program had heard
            self._wait([], partial(tell, known))
            return
        number = self._number
        places = [(each, each.reserve()) for each in recipients]
        told = self._note(program_id, ticket, len(places))
        changes = [Change(tenant, None, None, program_id, told)]
        if places:
            self._number += 1
            self._places[number] = tenant, len(places)
            changes.append(Change(tenant, _key(number), message, program_id, told))
            for each, index in places:
                changes.append(Change(tenant, _place(each, index), _hex(number), program_id, told))

        def stored() -> None:
            for each, index in places:
                each.put(Message(index, number, message))
            tell(len(places))

        self._wait(changes, stored)

    def subscribe(self, tenant: str, program_id: str, number: int, topic: str, answer: Answer) -> None:
        """Subscribe a program. Raises what topics in memory raise."""
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

    def leave(self, program_id: str) -> None:
        """End all subscriptions of a program, and forget its broadcasts: nobody asks for them again."""
        if not self._loaded:
            self._early.append(partial(self.leave, program_id))
            return
        for number in self.of_program(program_id):
            self.unsubscribe(program_id, number)
        if self._told.pop(program_id, None) is not None:
            self._wait([Change("", None, None, program_id, {})], _nothing)

    def _note(self, program_id: str, ticket: int, reached: int) -> dict[int, int]:
        """Return the answers to the last broadcasts of a program, the one to this broadcast included."""
        mine = self._told.setdefault(program_id, {})
        if len(self._told) > TOLD_PROGRAMS:
            del self._told[next(iter(self._told))]
        if ticket:  # else nobody awaits the answer, and nobody asks again
            mine[ticket] = reached
            if len(mine) > TOLD:
                del mine[next(iter(mine))]
        return dict(mine)

    def _let_go(self, each: Subscription, index: int, number: int) -> None:
        """Forget a place, and its message if that was the last one."""
        tenant, left = self._places[number]
        changes = [Change(tenant, _place(each, index), None, "", {})]
        if left > 1:
            self._places[number] = tenant, left - 1
        else:
            del self._places[number]
            changes.append(Change(tenant, _key(number), None, "", {}))
        self._wait(changes, _nothing)

    def _set(self, tenant: str, key: str, value: bytes | None) -> None:
        self._wait([Change(tenant, key, value, "", {})], _nothing)

    def _wait(self, changes: list[Change], then: Callable[[], None]) -> None:
        self._waiting.append(_Waiting(changes, then))
        self._waiting_bytes += self._waiting[-1].size
        self._work.set()

    # ---- the Redis --------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Read what is kept, unless the Redis takes too long: then that happens later, and calls wait."""
        try:
            async with asyncio.timeout(LOAD_S):
                await self._load()
        except (ValuesAway, TimeoutError) as e:
            log.warning("the messages on topics can't be read yet: %s", e)
            self._work.set()

    async def _load(self) -> None:
        async with asyncio.timeout(READ_S):
            found = [each async for each in self._values.read()]
        self._take(found)
        self._loaded = True
        self._claims = asyncio.get_running_loop().call_later(CLAIM_S, self._drop_absent)
        early, self._early = self._early, deque()
        for work in early:
            work()
        if early:
            self._on_answered()

    def _take(self, found: list[Found]) -> None:
        """Make the subscriptions that were kept, each with its messages in order. What makes no sense is deleted."""
        messages: dict[int, tuple[str, bytes]] = {}
        places: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        wrong: list[tuple[str, str]] = []
        for tenant, key, value, told in ((each.tenant, each.key, each.value, each.told) for each in found):
            try:
                if told is not None:
                    self._told[key] = told
                elif key.startswith(_SUBSCRIPTION):
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

    def _drop_absent(self) -> None:
        for each in self.absent():
            self.unsubscribe(*each.owner)

    async def run(self, on_answered: Callable[[], None]) -> None:
        """Store what waits until cancelled. `on_answered` is called after answers that had waited."""
        self._on_answered = on_answered
        first_s, most_s = RETRY_S
        wait_s = first_s
        while True:
            await self._work.wait()
            self._work.clear()
            try:
                if not self._loaded:
                    await self._load()
                await self._write()
                wait_s = first_s
            except (ValuesAway, TimeoutError) as e:
                if wait_s == first_s:
                    log.warning("the store's Redis is away, and programs wait for it: %s", e)
                self._work.set()
                await asyncio.sleep(wait_s)
                wait_s = min(most_s, 2 * wait_s)

    async def _write(self) -> None:
        while self._waiting:
            some, changes, size = list[_Waiting](), list[Change](), 0
            for each in self._waiting:
                some.append(each)
                changes += each.changes
                size += each.size
                if len(changes) >= _AT_ONCE or len(some) >= _AT_ONCE or size >= _AT_ONCE_BYTES:
                    break
            if changes:
                await self._values.write(changes)
            for each in some:
                self._waiting.popleft()
                self._waiting_bytes -= each.size
                each.then()
            self._on_answered()

    async def close(self) -> None:
        """Write what waits, within a second."""
        if self._claims is not None:
            self._claims.cancel()
        try:
            async with asyncio.timeout(1.0):
                if self._loaded:
                    await self._write()
        except (ValuesAway, TimeoutError) as e:
            log.warning("the last messages on topics are lost: %s", e)
        await self._values.close()


def _hex(number: int) -> bytes:
    return f"{number:x}".encode()


def _key(number: int) -> str:
    return f"{_MESSAGE}{number:x}"


def _owner(program_id: str, number: int) -> str:
    return f"{_SUBSCRIPTION}{program_id}/{number}"


def _place(each: Subscription, index: int) -> str:
    program_id, number = each.owner
    return f"{_PLACE}{program_id}/{number}/{index}"


def _nothing() -> None:
    """No-op callback."""
