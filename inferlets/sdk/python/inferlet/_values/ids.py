"""Ids of pages, embeds, slots, tables and queues, chosen by the program (architecture, "Programs choose names").

A queue reuses only ids that it freed itself. In its own order the old use of an id surely ends before the new one
begins.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Generic, NoReturn, TypeVar

from inferlet._values.arguments import shown
from inferlet.errors import InvalidArgument

_Id = TypeVar("_Id", bound=int)
_CALLS = {
    "page": "alloc_kvpage",
    "embed": "alloc_emb",
    "slot": "alloc_slot",
    "table": "table",
    "grammar": "alloc_grammar",
}


class IdSpace:
    """The next unused id of each kind, for the whole program."""

    __slots__ = ("embed", "grammar", "page", "queue", "slot", "table")

    def __init__(self) -> None:
        self.page = self.embed = self.slot = self.table = 0
        self.queue = 1  # 0 is the default queue
        self.grammar = 1  # 0 stands for the matcher that a slot has


ids = IdSpace()


class Pool(Generic[_Id]):
    """Gives ids of one kind: ids that the queue has freed, then fresh ids."""

    __slots__ = ("_free", "cls", "kind")

    def __init__(self, cls: type[_Id], kind: str) -> None:
        self.cls, self.kind = cls, kind
        self._free: list[_Id] = []

    def take(self, n: int) -> list[_Id]:
        """Return `n` unused ids.

        Raises:
            InvalidArgument: `n` is no whole number of at least 0.
        """
        free = self._free
        try:
            if len(free) >= n > 0:
                out = free[-n:]
                del free[-n:]
                return out
            n = index(n)
        except TypeError:
            self._refuse(n)
        if n <= 0:
            if n:
                self._refuse(n)
            return []
        out, self._free = free, []
        first = getattr(ids, self.kind)
        end = first + n - len(out)
        setattr(ids, self.kind, end)
        cls = self.cls
        out.extend([cls(i) for i in range(first, end)])
        return out

    def _refuse(self, n: object) -> NoReturn:
        told = f"it is the number of {self.kind}s, a whole number of at least 0, not {shown(n)}"
        raise InvalidArgument(argument=f"n of {_CALLS[self.kind]}", detail=told)

    def give(self, back: Iterable[_Id]) -> None:
        """Take back ids whose deallocation has been recorded."""
        self._free.extend(back)
