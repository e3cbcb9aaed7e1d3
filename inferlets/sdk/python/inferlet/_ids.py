"""Ids of pages, embeds, slots and queues, which the program chooses (architecture, "Programs name what they use").

Ids are reused in the queue that freed them, because only there is the old holder's end sure to come before the new
one's beginning.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from inferlet._arguments import whole

_Id = TypeVar("_Id", bound=int)


class IdSpace:
    """Next unused id of each kind, for the whole program."""

    __slots__ = ("embed", "page", "queue", "slot")

    def __init__(self) -> None:
        self.page = self.embed = self.slot = 0
        self.queue = 1  # 0 is the default queue


ids = IdSpace()


class Pool(Generic[_Id]):
    """Ids of one kind that one queue has freed, and fresh ones when it has none."""

    __slots__ = ("_cls", "_free", "_kind")

    def __init__(self, cls: type[_Id], kind: str) -> None:
        self._cls, self._kind = cls, kind
        self._free: list[_Id] = []

    def take(self, n: int) -> list[_Id]:
        """`n` ids that nobody holds."""
        free = self._free
        if len(free) >= n > 0:
            out = free[-n:]
            del free[-n:]
            return out
        if n <= 0:
            whole(f"the number of {self._kind}s", n, 0)
            return []
        out, self._free = free, []
        first = getattr(ids, self._kind)
        end = first + n - len(out)
        setattr(ids, self._kind, end)
        cls = self._cls
        out.extend([cls(i) for i in range(first, end)])
        return out

    def give(self, back: Iterable[_Id]) -> None:
        """Ids whose deallocation has been recorded."""
        self._free.extend(back)
