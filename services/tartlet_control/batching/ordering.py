"""Arranges waiting commands: tenants by their shares, a tenant's programs by rank, a program's queues by priority.

A priority moves a command only among the places that its own program has. So no program gets ahead of another by giving
its queues a high priority.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from tartlet_common.abi import Priority
from tartlet_control.order.shares import Shares
from tartlet_control.tables.programs import Command, CommandQueue, ProgramState

T = TypeVar("T")

_NORMAL: Final = int(Priority.NORMAL)
_HIGH: Final = int(Priority.HIGH)


def arrange(
    entries: list[T], head: Callable[[T], Command], now: float, starved_s: float, shares: Shares | None = None
) -> list[T]:
    """Return entries, each with a command at its head, in the order in which they go.

    Args:
        entries: by the ranks of their threads; the list may be changed.
        head: returns the command of an entry.
        now: in seconds.
        starved_s: a command that has waited longer counts as of high priority within its program.
        shares: of the tenants; None: the entries are of one tenant.
    """
    if any(head(entry).queue.priority != _NORMAL for entry in entries):
        _by_priority(entries, head, now - starved_s)
    if shares is not None:
        return shares.mix(entries, lambda entry: head(entry).queue.program.tenant, lambda entry: head(entry).tokens)
    return entries


def first(queues: Sequence[CommandQueue], now: float, starved_s: float, shares: Shares | None = None) -> Command:
    """Return the command that goes first, as `arrange` has it. `queues` have a command at their head, by rank."""
    if shares is not None:
        tenant = min(queues, key=lambda queue: shares.time(queue.program.tenant)).program.tenant
        queues = [queue for queue in queues if queue.program.tenant == tenant]
    own = [queue.pending[0] for queue in queues if queue.program is queues[0].program]
    return arrange(own, _itself, now, starved_s)[0]


def _itself(command: Command) -> Command:
    return command


def _by_priority(found: list[T], head: Callable[[T], Command], starved_before: float) -> None:
    """Within the places of each program, let its higher priorities go first."""
    places: dict[ProgramState, list[int]] = {}
    for place, entry in enumerate(found):
        places.setdefault(head(entry).queue.program, []).append(place)

    def urgency(entry: T) -> int:
        command = head(entry)
        return -(command.queue.priority if command.arrived > starved_before else _HIGH)

    for own in places.values():
        if len(own) > 1:
            for place, entry in zip(own, sorted([found[place] for place in own], key=urgency), strict=True):
                found[place] = entry
