"""Messages of clients on their way into a program: each is delivered once, and acknowledged once it can't be lost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tartlet_runtime.journal.records import Kind, pack_keys
from tartlet_runtime.program.inbox import Inbox
from tartlet_runtime.program.recorder import Recorder

MAX_KEY_BYTES: Final = 64
_KEPT_KEYS: Final = 4096
_KEYS_SHARE: Final = 4
"""The part of a journal that keys of earlier runs may take at its beginning: the inverse."""


class Mail:
    """The keys of the last sendings to one program, by which a repeated one is recognised."""

    __slots__ = ("_inbox", "_keys")

    def __init__(self, inbox: Inbox) -> None:
        """Begin without messages, in front of a program's inbox."""
        self._inbox = inbox
        self._keys: dict[bytes, None] = {}

    def restore(self, keys: Iterable[bytes]) -> None:
        """Remember the keys of messages that an earlier copy of the program was sent."""
        for key in keys:
            self._remember(key)

    def moved_to(self, inbox: Inbox) -> Mail:
        """Return the mail of the program's next run, which knows the same keys."""
        after = Mail(inbox)
        after._keys = self._keys
        return after

    def record(self, recorder: Recorder, limit_bytes: int) -> None:
        """Record the keys in the journal of the program's next run: the last ones, up to a quarter of `limit_bytes`.

        Raises:
            JournalFull: they don't fit what the journals of all programs may take.
        """
        room = limit_bytes // _KEYS_SHARE
        keys: list[bytes] = []
        for key in reversed(self._keys):
            room -= 1 + len(key)
            if room < 0:
                break
            keys.append(key)
        if keys:
            recorder.record(0, pack_keys(reversed(keys)), kind=Kind.KEYS)

    def take(self, message: bytes, key: bytes, recorder: Recorder | None, clock_ns: int) -> None:
        """Take a message, unless one of the same key was taken before; "" is no key.

        Raises:
            InboxFull, FrameTooLarge, MemoryBudgetExceeded: as `Inbox.put_message`.
            JournalFull: the message doesn't fit the program's journal, so the program must end.
        """
        if key and key in self._keys:
            return
        self._inbox.put_message(message)
        if recorder is not None:
            recorder.record(clock_ns, bytes([len(key)]) + key + message, kind=Kind.MESSAGE)
        self._remember(key)

    def knows(self, key: bytes) -> bool:
        """Return whether a message of this key was taken; "" is no key."""
        return key[:MAX_KEY_BYTES] in self._keys

    def _remember(self, key: bytes) -> None:
        if key:
            self._keys[key] = None
            if len(self._keys) > _KEPT_KEYS:
                del self._keys[next(iter(self._keys))]
