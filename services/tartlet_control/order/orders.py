"""The orders of programs: each ranks a thread's waiting commands, and the lowest rank goes first (Autellix 4.2).

A rank is (level, time, whether a step left the call out, number). Calls of one level go by when they began. Of two that
began at once, the one that computes isn't stopped for the other, and the number of the program makes the ranks of two
programs differ. `fcfs` and `mlfq` know calls only, and with `mlfq` a call starves by itself; the other orders give all
calls of a program one level.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from sys import float_info
from typing import Final

from tartlet_control.order import expecting
from tartlet_control.order.book import Thread, boost, changed
from tartlet_control.order.sizes import History

Rank = tuple[float, float, bool, int]
_Stand = tuple[float, float, int]
_ROUNDING_S: Final = 1e-4
"""More than the rounding errors of sums of times, in seconds of a clock that runs for years."""
_FIRST: Final = -float_info.max
"""The level of `gittins` before all indices. Only a call that can't be stopped goes before it."""


@dataclass(frozen=True, slots=True)
class Order:
    """An order with its parameters."""

    name: str = "round-robin"
    bounds_s: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
    """Where one queue ends and the next begins, in device time that was had; the last queue has no end. What lies
    between two bounds is the quantum of a queue."""
    starved_at: float = 8.0
    """A program that has waited this many times its service goes first for one quantum (beta); 0: never."""
    preempt: str = "step"
    """When a call that was chosen may be stopped for others: at each `step`, once its `quantum` is used up, or never
    before the `call` ends. What it can't be stopped for has a lower rank than everything else."""
    every: int = 1
    """Steps for which a choice stands (multi-step scheduling), with `preempt` "step"."""
    history: History = field(default_factory=History, compare=False)
    """What `gittins` has learned."""

    @property
    def boosts(self) -> bool:
        """Whether a program that has starved goes before others."""
        return bool(self.starved_at) and self.name not in {"round-robin", "fcfs", "srpt"}

    @property
    def quantum_s(self) -> float:
        """The quantum of the first queue."""
        return self.bounds_s[0]

    def rank(self, thread: Thread, now: float) -> Rank:
        """Return where a thread's waiting command stands. The lowest rank goes first."""
        level, time, number = ORDERS[self.name](self, thread, now)
        stopped = thread.waits_since is not None and not thread.goes_on
        return (-inf if stays(self, thread) else level, time, stopped, number)


def stays(order: Order, thread: Thread) -> bool:
    """Return whether a thread's call was chosen and can't be stopped yet."""
    if not thread.turn_steps:
        return False
    match order.preempt:
        case "call":
            return True
        case "quantum":
            return thread.turn_s < _quantum_s(order, thread)
    return thread.turn_steps < order.every


def chosen(order: Order, thread: Thread, now: float) -> None:
    """Note that a thread's command is in the next step. What has starved goes first for one quantum from now on."""
    if starved(order, thread, now):
        boost(thread, 0.0 if order.name == "mlfq" else order.quantum_s, now)
    if not stays(order, thread):
        thread.turn_steps, thread.turn_s = 0, 0.0
    thread.turn_steps += 1
    changed(thread.program)


def steady_until(order: Order, thread: Thread, now: float) -> float:
    """Return until when a thread's rank stays as it is, if nothing is noted of its program meanwhile.

    Only that a waiting call starves comes with the time alone. Around that time the rank may change at any moment,
    because the sum of times that are compared is rounded. With `round-robin`, threads that don't wait rank by the time.
    """
    since = thread.waits_since
    if since is None:
        return now if order.name == "round-robin" else inf
    if not order.boosts:
        return inf
    waited_s, served_s = _counted(order, thread)
    starves_s = since + order.starved_at * max(served_s, order.quantum_s) - waited_s
    if now > starves_s + _ROUNDING_S:
        return inf
    return max(now, starves_s - _ROUNDING_S)


def starved(order: Order, thread: Thread, now: float) -> bool:
    """Return whether a thread's program has waited too long for the service it had (Algorithm 1, line 26).

    With `mlfq` the call counts alone, as in the baseline of the paper, which knows no programs.
    """
    if not order.boosts:
        return False
    waited_s, served_s = _counted(order, thread)
    if thread.waits_since is not None:
        waited_s += now - thread.waits_since
    return waited_s >= order.starved_at * max(served_s, order.quantum_s)


def _counted(order: Order, thread: Thread) -> tuple[float, float]:
    """Return the waiting, without that since `waits_since`, and the service that count towards starvation."""
    waited_s, served_s = thread.waited_s - thread.forgiven[0], -thread.forgiven[1]
    if order.name == "mlfq":
        return waited_s, served_s + thread.service_s
    return waited_s + thread.program.waited_s, served_s + thread.program.service_s


def _attained_s(order: Order, thread: Thread) -> float:
    """Return the service by which an order has a thread in one of its queues."""
    match order.name:
        case "mlfq":
            return thread.service_s - thread.forgiven[1]
        case "atlas":
            return thread.program.critical_s
    return thread.program.service_s


def _quantum_s(order: Order, thread: Thread) -> float:
    """Return the quantum of the queue that a thread was in when it was chosen."""
    bounds = (0.0, *order.bounds_s)
    level = min(_level(order, max(0.0, _attained_s(order, thread) - thread.turn_s)), len(order.bounds_s) - 1)
    return bounds[level + 1] - bounds[level]


def _first(order: Order, thread: Thread, now: float) -> bool:
    return thread.program.service_s < thread.program.boosted_to_s or starved(order, thread, now)


def _level(order: Order, service_s: float) -> int:
    return bisect_right(order.bounds_s, service_s)


def round_robin(order: Order, thread: Thread, now: float) -> _Stand:
    """Rank by how long the thread has waited since its last step."""
    since = thread.waits_since
    return (0.0, now if since is None else since, thread.program.number)


def fcfs(order: Order, thread: Thread, now: float) -> _Stand:
    """Rank by when the call began."""
    return (0.0, thread.arrived_s, thread.program.number)


def mlfq(order: Order, thread: Thread, now: float) -> _Stand:
    """Rank by the service that the call itself has had, in queues (FastServe's skip-join left out)."""
    level = 0 if starved(order, thread, now) else _level(order, _attained_s(order, thread))
    return (level, thread.arrived_s, thread.program.number)


def plas(order: Order, thread: Thread, now: float) -> _Stand:
    """Rank by the service that all calls of the program have had, in queues (Autellix, equation 1)."""
    level = 0 if _first(order, thread, now) else _level(order, _attained_s(order, thread))
    return (level, thread.arrived_s, thread.program.number)


def atlas(order: Order, thread: Thread, now: float) -> _Stand:
    """Rank by the longest chain of calls that was seen of the program, in queues (Autellix, equation 2)."""
    return plas(order, thread, now)


def gittins(order: Order, thread: Thread, now: float) -> _Stand:
    """Rank by how soon the program is likely to end, as itself or past runs of the same program tell.

    While no run of any program is known, a program counts as one that has just come into its queue of `plas`.
    """
    program = thread.program
    if _first(order, thread, now):
        return (_FIRST, thread.arrived_s, program.number)
    service_s = program.service_s
    if order.history.is_empty:
        service_s = (0.0, *order.bounds_s)[_level(order, service_s)]
    level = max(_FIRST, -expecting.index(order.history, program, service_s))
    return (level, thread.arrived_s, program.number)


def srpt(order: Order, thread: Thread, now: float) -> _Stand:
    """Rank by the service that the program still needs. Only a simulation knows this; no order does better."""
    program = thread.program
    return (program.remaining_s, thread.arrived_s, program.number)


ORDERS: Final[dict[str, Callable[[Order, Thread, float], _Stand]]] = {
    "round-robin": round_robin,
    "fcfs": fcfs,
    "mlfq": mlfq,
    "plas": plas,
    "atlas": atlas,
    "gittins": gittins,
    "srpt": srpt,
}
"""Each order by its name."""
LIVE: Final = tuple(name for name in ORDERS if name != "srpt")
"""The orders that a control can follow."""


def usual_starved_at(name: str) -> float:
    """Return the beta of an order where nobody names one.

    With a small beta most programs count as starved under a long overload, so that any order becomes `fcfs`. The orders
    of the paper guess, and need that bound for their tails. `gittins` knows more, and has short tails without.

    Example:
        >>> usual_starved_at("plas"), usual_starved_at("gittins")
        (8.0, 64.0)
    """
    return 64.0 if name == "gittins" else 8.0
