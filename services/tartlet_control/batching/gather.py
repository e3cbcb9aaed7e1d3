"""`gather`: which waiting commands make up the next step of an engine (Pie 5.2, "Batch scheduler").

A step is several batches that the worker runs in order. Batches are formed horizontally (every queue whose head is of
the kind) and vertically (consecutive commands of one queue that don't conflict). Within the step, the kind whose oldest
command waited longest goes first, and ties go in pipeline order. Within a batch the order of programs decides. A batch
through the model's layers goes when nothing else can go before it, so that the commands that feed it are in the same
step. A step has at most one such batch: the device works on one step while the next is formed, and tokens return after
each.

`gather` is pure: it reads the queues and changes nothing. Each queue is walked by one iterator from its head, which
keeps the order within the queue.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from tartlet_control.batching.ordering import Rank, sort
from tartlet_control.calls.base import Conflicts
from tartlet_control.calls.registry import BY_KIND, RUNS_LAYERS
from tartlet_control.order.shares import Shares
from tartlet_control.tables.programs import Command, CommandQueue

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


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One batch: commands of one kind, in the order in which the worker gets them."""

    kind: int
    commands: list[Command]


_Entry = tuple[Command, Iterator[Command]]


class _Step:
    """The step that is being gathered."""

    __slots__ = ("buckets", "bytes_left", "dispatches", "forwarded", "limits", "now", "oldest", "rank", "rebuild_left",
                 "shares")  # fmt: skip

    def __init__(self, limits: Limits, rank: Rank, now: float, shares: Shares | None) -> None:
        self.limits = limits
        self.shares = shares
        self.rank = rank
        self.now = now
        self.dispatches: list[Dispatch] = []
        self.bytes_left = limits.step_bytes
        self.forwarded = False
        self.rebuild_left = limits.rebuild_tokens
        self.buckets: dict[int, list[_Entry]] = {kind: [] for kind in PIPELINE}
        self.oldest: dict[int, float] = dict.fromkeys(PIPELINE, 0.0)

    def offer(self, command: Command, rest: Iterator[Command]) -> None:
        """Offer a command that could run next; `rest` continues its queue."""
        kind = command.kind
        bucket = self.buckets[kind]
        if not bucket or command.arrived < self.oldest[kind]:
            self.oldest[kind] = command.arrived
        bucket.append((command, rest))

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
        return min(light or waiting, key=self.oldest.__getitem__, default=0)

    def ordered(self, entries: list[_Entry]) -> list[_Entry]:
        """Sort by the shares of tenants and the order of programs: a batch that is full is cut from the end."""
        return sort(entries, _head, self.rank, self.now, self.limits.starved_s, self.shares)


def _head(entry: _Entry) -> Command:
    return entry[0]


def gather(
    queues: Collection[CommandQueue], limits: Limits, rank: Rank, now: float, shares: Shares | None = None
) -> list[Dispatch]:
    """Return the batches of the next step, at most one of them through the layers; empty if nothing waits.

    Args:
        queues: with an engine command at their head.
        limits: of the engine's batches and steps.
        rank: says which thread goes first, the lowest rank.
        now: in seconds of control's clock.
        shares: of the tenants; None: the queues are of one tenant.
    """
    step = _Step(limits, rank, now, shares)
    if all(queue.id < 0 for queue in queues):
        step.rebuild_left = limits.batch_tokens
    for queue in queues:
        rest = iter(queue.pending)
        step.offer(next(rest), rest)
    while len(step.dispatches) < MAX_BATCHES:
        kind = step.choose()
        if not kind:
            break
        entries = step.ordered(step.buckets[kind])
        step.buckets[kind] = []
        taken, full = _fill(step, entries)
        if kind in RUNS_LAYERS:
            step.forwarded = True
        if taken:
            step.dispatches.append(Dispatch(kind, taken))
        if full and (not taken or step.bytes_left <= 0):
            break
    return step.dispatches


def _fill(step: _Step, entries: list[_Entry]) -> tuple[list[Command], bool]:
    """Return the commands of one batch, and whether it is full and some were left behind."""
    taken: list[Command] = []
    limits = step.limits
    room, tokens_left, bytes_left = limits.batch_commands, limits.batch_tokens, step.bytes_left
    for at, (head, rest) in enumerate(entries):
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
                    for left in [(command, rest), *entries[at + 1 :]]:
                        step.offer(*left)
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
                    step.offer(following, rest)
                break
            if own is None:
                own = BY_KIND[command.kind].conflicts()
            own.add(command)
            if own.conflicts(following):
                step.offer(following, rest)
                break
            command = following
    step.bytes_left = bytes_left
    return taken, False
