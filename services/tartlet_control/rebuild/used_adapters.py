"""Which LoRA adapters a place uses: those of its contexts, and those of commands that aren't done."""

from __future__ import annotations

from itertools import chain
from typing import Final

from tartlet_control.rebuild.logs import settle
from tartlet_control.tables.programs import Place


class _AnyNumber(frozenset[int]):
    """Contains every number."""

    __slots__ = ()

    def __contains__(self, number: object) -> bool:
        return True


ANY: Final = _AnyNumber()
"""What a place keeps while its history is read, which names adapters that have been retired since."""


def adapters_of(place: Place) -> set[int]:
    """Return the numbers of the adapters that a place uses."""
    used = adapters_of_contexts(place)
    waiting = (queue.pending for queue in place.program.queues.values() if queue.place is place)
    used.update(getattr(command, "adapter", 0) for command in chain(place.log, *waiting))
    return used - {0}


def adapters_of_contexts(place: Place) -> set[int]:
    """Return the numbers of the adapters under which a place's pages were computed."""
    settle(place)
    book = place.book
    used = set(book.adapters.values())
    for line in book.tables.values():
        if line.length:
            used |= {line.adapter} if line.is_plain else {line.adapter, line.under}
    return used - {0}
