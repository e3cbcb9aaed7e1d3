"""What programs of one tenant share: the store, and messages on topics (the core-runtime trait of the paper).

Control answers these calls, so that they reach programs at other runtimes as well.
"""

from __future__ import annotations

import asyncio
from typing import Any, Self

from inferlet._generated import packers
from inferlet._values import arguments, refusals
from inferlet._wire import answers
from inferlet._wire.channel import channel


def store_get(key: str) -> asyncio.Future[str | None]:
    """Ask for the value of a key of the tenant's store, as text; None if there is no such key.

    Raises:
        InvalidArgument: the key is empty, longer than 256 bytes, or holds control characters.

    Example:
        >>> async def main():
        ...     await store_set("city", "Paris")
        ...     print(await store_get("city"), await store_get("river"))
        Paris None
    """
    return channel.call(_found_text, *packers.store_get(_key("store_get", key)))


def store_get_bytes(key: str) -> asyncio.Future[bytes | None]:
    r"""Ask for the value of a key as bytes; None if there is no such key.

    Raises:
        InvalidArgument: as for `store_get`.

    Example:
        >>> async def main():
        ...     await store_set("blob", bytes(3))
        ...     print(await store_get_bytes("blob"))
        b'\x00\x00\x00'
    """
    return channel.call(_found_bytes, *packers.store_get(_key("store_get_bytes", key)))


def store_set(key: str, value: str | bytes) -> asyncio.Future[bool]:
    """Set a key of the tenant's store; the answer is whether the key had a value before.

    All programs of the tenant see the value, and programs of other tenants never do. The store outlives programs, and
    control where the server keeps it in a Redis. A tenant may have 4096 keys and 16 MiB of keys and values.

    Args:
        key: 1 to 256 bytes of UTF-8, without control characters.
        value: text, or at most 256 KiB of bytes.

    Raises:
        InvalidArgument: key or value are none.
        ResourceQuotaExceeded: the tenant's store is full.

    Example:
        >>> async def main():
        ...     print(await store_set("n", "1"), await store_set("n", "2"))
        False True
    """
    name, data = _key("store_set", key), refusals.data("store_set", "value", value)
    return channel.call(_flag, *packers.store_set(name, data))


def store_delete(key: str) -> asyncio.Future[bool]:
    """Delete a key of the tenant's store; the answer is whether there was such a key.

    Raises:
        InvalidArgument: as for `store_get`.

    Example:
        >>> async def main():
        ...     await store_set("old", "1")
        ...     print(await store_delete("old"), await store_delete("old"))
        True False
    """
    return channel.call(_flag, *packers.store_delete(_key("store_delete", key)))


def store_exists(key: str) -> asyncio.Future[bool]:
    """Ask whether the tenant's store has a key.

    Raises:
        InvalidArgument: as for `store_get`.

    Example:
        >>> async def main():
        ...     print(await store_exists("nothing"))
        False
    """
    return channel.call(_flag, *packers.store_exists(_key("store_exists", key)))


def store_list_keys(prefix: str = "") -> asyncio.Future[list[str]]:
    """Ask for the keys of the tenant's store that begin with `prefix`, sorted.

    Raises:
        InvalidArgument: as for `store_get`, but the prefix may be empty.

    Example:
        >>> async def main():
        ...     for name in ("b/1", "a/2", "a/1"):
        ...         await store_set(name, "")
        ...     print(await store_list_keys("a/"))
        ['a/1', 'a/2']
    """
    return channel.call(answers.json_value, *packers.store_list_keys(_key("store_list_keys", prefix)))


def broadcast(topic: str, message: str | bytes) -> asyncio.Future[int]:
    """Send a message to all subscriptions of a topic; the answer is their number.

    Subscriptions of the tenant's programs get the message, at all runtimes, and the program's own as well. A
    subscription that begins later doesn't.

    Args:
        topic: 1 to 256 bytes of UTF-8.
        message: text, or at most 64 KiB of bytes.

    Raises:
        InvalidArgument: topic or message are none.

    Example:
        >>> async def main():
        ...     news = subscribe("news")
        ...     print(await broadcast("news", "it rains"), await news.receive())
        1 it rains
    """
    name, data = _key("broadcast", topic, "topic"), refusals.data("broadcast", "message", message)
    return channel.call(answers.number, *packers.broadcast(name, data))


class Subscription:
    """A program's subscription to a topic, which `subscribe` makes. Iterating over it gives messages as text.

    Messages wait until the program takes them, at most 256 of them and 256 KiB. Beyond that the oldest are lost.

    Example:
        >>> async def main():
        ...     async with subscribe("news") as news:
        ...         broadcast("news", "one")
        ...         broadcast("news", "two")
        ...         async for message in news:
        ...             print(message, news.lost)
        ...             if message == "two":
        ...                 break
        one 0
        two 0
    """

    __slots__ = ("_asked", "_begun", "_turn", "id", "lost", "topic")

    def __init__(self, number: int, topic: str, begun: asyncio.Future[None]) -> None:
        self.id = number
        self.topic = topic
        self.lost = 0
        """Messages that were lost because they were not taken in time."""
        self._begun = begun
        self._asked: asyncio.Future[tuple[int, bytes]] | None = None  # serves the next wait if this one is cancelled
        self._turn = asyncio.Lock()

    async def receive_bytes(self) -> bytes:
        """Wait for the next message, as bytes. A wait that is cancelled loses no message.

        Raises:
            ResourceQuotaExceeded: the program or its tenant has too many subscriptions (64, and 1024).
            CommandCancelled: the subscription was closed.
        """
        async with self._turn:
            await asyncio.shield(self._begun)
            if self._asked is None:
                self._asked = channel.call(_message, *packers.next_message(self.id))
            asked = self._asked
            try:
                lost, message = await asyncio.shield(asked)
            except asyncio.CancelledError:
                raise
            except BaseException:
                self._asked = None
                raise
            self._asked = None
            self.lost += lost
            return message

    async def receive(self) -> str:
        """Wait for the next message, as text; bytes that are no UTF-8 become U+FFFD. Raises as `receive_bytes` does."""
        return (await self.receive_bytes()).decode(errors="replace")

    def close(self) -> asyncio.Future[None]:
        """End the subscription. Messages that wait are dropped."""
        return channel.call(answers.nothing, *packers.unsubscribe(self.id))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        return await self.receive()

    async def __aenter__(self) -> Self:
        await asyncio.shield(self._begun)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _Numbers:
    """The numbers of a program's subscriptions."""

    __slots__ = ("next",)

    def __init__(self) -> None:
        self.next = 1


numbers = _Numbers()


def reset() -> None:
    """Forget the last program's subscriptions."""
    numbers.__init__()  # type: ignore[misc]


def subscribe(topic: str) -> Subscription:
    """Subscribe to a topic of the tenant. Messages that are broadcast from then on wait in the subscription.

    Args:
        topic: 1 to 256 bytes of UTF-8.

    Raises:
        InvalidArgument: the topic is no text; a wait for a message raises what control refuses.

    Example:
        >>> async def main():
        ...     orders = subscribe("orders")
        ...     await broadcast("orders", b"tea")
        ...     print(await orders.receive_bytes())
        b'tea'
    """
    name = _key("subscribe", topic, "topic")
    number = numbers.next
    numbers.next += 1
    return Subscription(number, topic, channel.call(answers.nothing, *packers.subscribe(number, name)))


def _key(call: str, text: Any, argument: str = "key") -> bytes:
    if not isinstance(text, str):
        raise refusals.refusal(call, argument, f"it takes a text, not {arguments.shown(text)}")
    return refusals.utf8(call, argument, text)


def _flag(a: int, _b: int, _c: int, _payload: bytes) -> bool:
    return a != 0


def _found_text(a: int, _b: int, _c: int, payload: bytes) -> str | None:
    return payload.decode(errors="replace") if a else None


def _found_bytes(a: int, _b: int, _c: int, payload: bytes) -> bytes | None:
    return payload if a else None


def _message(a: int, _b: int, _c: int, payload: bytes) -> tuple[int, bytes]:
    return a, payload
