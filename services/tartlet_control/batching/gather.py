"""`gather`: which waiting commands make up the next step of an engine (Pie 5.2, "Batch scheduler").

A step is several batches that the worker runs in order. Batches are formed horizontally (every queue whose head is of
the kind) and vertically (consecutive commands of one queue that don't conflict). Within the step, the kind whose oldest
command waited longest goes first, and ties go in pipeline order. Within a batch the order of programs decides. A batch
through the model's layers goes when nothing else can go before it, so that the commands that feed it are in the same
step. A step has at most one such batch: the device works on one step while the next is formed, and tokens return after
each.

`gather` is pure: it reads the queues and changes nothing. Each queue is walked by one iterator from its head, which
keeps the order within the queue. Queues that come too late for a full batch aren't looked at.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Final

from tartlet_control.batching.ordering import arrange
from tartlet_control.batching.waiting import Ranked
from tartlet_control.calls.base import Conflicts
from tartlet_control.calls.registry import BY_KIND, RUNS_LAYERS
from tartlet_control.order.orders import Rank
from tartlet_control.order.shares import Shares
from tartlet_control.tables.programs import Command

PIPELINE: Final = tuple(BY_KIND)
"""Kinds in the order in which a decode iteration uses them."""
MAX_BATCHES: Final = 16
"""Most batches of a step. Otherwise a queue that alternates kinds could fill the step alone."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of an engine's batches and steps."""

    batch_tokens: int  # of one batch; a command with more tokens runs alone
    batch_commands: int
    rebuild_tokens: int = 1 << 30  # of a step, that make lost state again while others wait
    step_bytes: int = 3 << 20  # of a step's frame and of its answer; a message may have 4 MiB
    starved_s: float = 1.0  # a command that waited longer goes before all others of its program
    layer_tokens: int = 1 << 30  # of one batch through the layers, while several tenants share the engine


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One batch: commands of one kind, in the order in which the worker gets them."""

    kind: int
    commands: list[Command]


_Place = tuple[Rank, int]
_Entry = tuple[_Place, Command, Iterator[Command]]
"""Where a queue stands among all, its command that could run next, and the commands behind that."""


class _Bucket:
    """What could run next of one kind: queues by rank, which are looked at only as far as they go, and what came since.

    A queue that was taken from `queues` doesn't come back there: what it has next is in `more`.
    """

    __slots__ = ("left", "more", "oldest")

    def __init__(self, oldest: float, queues: Ranked) -> None:
        self.oldest = oldest
        self.left: Iterator[_Entry] | None = _entries(queues) if queues else None
        self.more: list[_Entry] = []

    def __bool__(self) -> bool:
        return self.left is not None or bool(self.more)

    def offer(self, entry: _Entry) -> None:
        """Add a command that could run next."""
        arrived = entry[1].arrived
        if not self or arrived < self.oldest:
            self.oldest = arrived
        self.more.append(entry)

    def take(self) -> Iterator[_Entry]:
        """Return all that is here, by rank, and be empty."""
        left, more = self.left, self.more
        self.left, self.more = None, []
        if len(more) > 1:
            more.sort(key=_PLACE)
        if left is None:
            return iter(more)
        return heapq.merge(left, more, key=_PLACE) if more else left

    def give_back(self, first: _Entry, rest: Iterator[_Entry]) -> None:
        """Take back what was left over, by rank."""
        self.left = chain((first,), rest)


def _entries(queues: Ranked) -> Iterator[_Entry]:
    for rank, number, queue in queues:
        rest = iter(queue.pending)
        yield (rank, number), next(rest), rest


_PLACE: Final = itemgetter(0)
_HEAD: Final[Callable[[_Entry], Command]] = itemgetter(1)


class _Step:
    """The step that is being gathered."""

    __slots__ = ("buckets", "bytes_left", "dispatches", "forwarded", "limits", "now", "plain", "rebuild_left",
                 "shares")  # fmt: skip

    def __init__(
        self,
        lanes: Mapping[int, tuple[float, Ranked]],
        limits: Limits,
        now: float,
        shares: Shares | None,
        *,
        plain: bool,
    ) -> None:
        self.limits = limits
        self.shares = shares
        self.plain = plain and shares is None
        self.now = now
        self.dispatches: list[Dispatch] = []
        self.bytes_left = limits.step_bytes
        self.forwarded = False
        self.rebuild_left = limits.rebuild_tokens
        self.buckets = {kind: _Bucket(*lanes.get(kind, (0.0, ()))) for kind in PIPELINE}

    def offer(self, place: _Place, command: Command, rest: Iterator[Command]) -> None:
        """Offer a command that could run next; `place` is that of its queue, and `rest` continues the queue."""
        self.buckets[command.kind].offer((place, command, rest))

    def takes_rebuild(self, command: Command) -> bool:
        """Return whether a command that makes lost state again may be in the step; the first one always may."""
        if command.kind not in RUNS_LAYERS:
            return True
        if command.tokens > self.rebuild_left and self.rebuild_left < self.limits.rebuild_tokens:
            return False
        self.rebuild_left -= command.tokens
        return True

    def choose(self) -> int:
        """Return the kind of the next batch, 0 if there is none."""
        waiting = [kind for kind in PIPELINE if self.buckets[kind]]
        light = [kind for kind in waiting if kind not in RUNS_LAYERS]
        if not light and self.forwarded:
            return 0
        return min(light or waiting, key=lambda kind: self.buckets[kind].oldest, default=0)

    def ordered(self, kind: int) -> Iterator[_Entry]:
        """Take what could run of a kind, by the shares of tenants and the order of programs: a full batch is cut."""
        entries = self.buckets[kind].take()
        if self.plain:
            return entries
        return iter(arrange(list(entries), _HEAD, self.now, self.limits.starved_s, self.shares))


def gather(
    lanes: Mapping[int, tuple[float, Ranked]],
    limits: Limits,
    now: float,
    shares: Shares | None = None,
    *,
    plain: bool = False,
    rebuilds: bool = False,
) -> list[Dispatch]:
    """Return the batches of the next step, at most one of them through the layers; empty if nothing waits.

    Args:
        lanes: by the kind of their heads the queues that have an engine command at their head, by rank, and when the
            oldest of these commands arrived.
        limits: of the engine's batches and steps.
        now: in seconds of control's clock.
        shares: of the tenants; None: the queues are of one tenant.
        plain: all queues have the normal priority.
        rebuilds: only commands of control's own wait, which make lost state again.
    """
    step = _Step(lanes, limits, now, shares, plain=plain)
    if rebuilds:
        step.rebuild_left = limits.batch_tokens
    while len(step.dispatches) < MAX_BATCHES:
        kind = step.choose()
        if not kind:
            break
        taken, full = _fill(step, kind, step.ordered(kind))
        if kind in RUNS_LAYERS:
            step.forwarded = True
        if taken:
            step.dispatches.append(Dispatch(kind, taken))
        if full and (not taken or step.bytes_left <= 0):
            break
    return step.dispatches


def _fill(step: _Step, kind: int, entries: Iterator[_Entry]) -> tuple[list[Command], bool]:
    """Return the commands of one batch, and whether it is full and some were left behind."""
    taken: list[Command] = []
    limits = step.limits
    room, tokens_left, bytes_left = limits.batch_commands, limits.batch_tokens, step.bytes_left
    if kind in RUNS_LAYERS:
        tokens_left = min(tokens_left, limits.layer_tokens)
    for place, head, rest in entries:
        command: Command | None = head
        own: Conflicts | None = None  # made once a queue brings a second command
        while command is not None:
            tokens, size = command.tokens, command.size
            if command.queue.id < 0 and not step.takes_rebuild(command):
                break  # the next step has more of it
            fits = room > 0 and tokens <= tokens_left and size <= bytes_left
            # one that is larger than any batch runs alone
            if not fits and (taken or (step.dispatches and size > bytes_left)):
                if command.kind not in RUNS_LAYERS:
                    step.buckets[command.kind].give_back((place, command, rest), entries)
                step.bytes_left = bytes_left
                return taken, True
            taken.append(command)
            room -= 1
            tokens_left -= tokens
            bytes_left -= size
            following = next(rest, None)
            if following is None:
                break
            if following.kind != command.kind:
                if following.kind:  # a control command waits until the step has been sent
                    step.offer(place, following, rest)
                break
            if own is None:
                own = BY_KIND[command.kind].conflicts()
            own.add(command)
            if own.conflicts(following):
                step.offer(place, following, rest)
                break
            command = following
    step.bytes_left = bytes_left
    return taken, False
