"""Keeps the log of a place: what was sent or executed and isn't in the book yet."""

from __future__ import annotations

from typing import Final

from tartlet_control.rebuild import notes
from tartlet_control.tables.programs import Command, Place

DONE: Final = ()
"""The outcome of a command that control has executed."""
_MANY: Final = 48
"""So many commands are noted at once, which costs less than to note each by itself."""


def note(place: Place, command: Command) -> None:
    """Log a command that control has executed."""
    command.outcome = DONE
    place.log.append(command)
    if len(place.log) >= _MANY:
        settle(place)


def settle_many(place: Place) -> None:
    """Note what has settled, if that is much."""
    if len(place.log) >= _MANY:
        settle(place)


def settle(place: Place) -> None:
    """Note all that has settled."""
    notes.settle(place.book, place.log)
