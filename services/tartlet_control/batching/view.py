"""What a batching policy is told of an engine, and what the policy answers."""

from __future__ import annotations

from dataclasses import dataclass

from tartlet_control.batching.gather import Dispatch, Limits, gather
from tartlet_control.batching.waiting import Waiting
from tartlet_control.order.orders import Order
from tartlet_control.order.shares import Shares


@dataclass(frozen=True, slots=True)
class Away:
    """Queues that have a command in flight and none waiting: their programs wait for an answer."""

    queues: int = 0
    ahead: int = 0  # queues in flight that do have something waiting: their programs run ahead
    soon: int = 0  # of `queues`, those whose next command usually comes soon after the answer
    soon_s: float = 0.0  # how long the slowest of `soon` usually takes
    worth_s: float = 0.0  # how long it pays to wait for them


@dataclass(frozen=True, slots=True)
class View:
    """What a policy sees of an engine. Its queues are live, and not to be changed."""

    queues: Waiting  # with an engine command at their head
    in_flight: int  # steps sent and unanswered
    depth: int  # steps that may be in flight
    limits: Limits
    order: Order  # of programs
    shares: Shares | None = None  # of tenants; None: one tenant has all queues
    running: tuple[float, float] = (0.0, 0.0)  # when the step that runs now should end, and its whole duration, in s
    away: Away = Away()
    expected: tuple[int, float] = (0, 0.0)  # queues whose next command is due any moment, and until when to wait

    def gather(self, now: float) -> list[Dispatch]:
        """Return the next step of what waits now."""
        queues = self.queues
        rebuilds = all(queue.id < 0 for queue in queues)
        lanes = queues.lanes(self.order, now)
        return gather(lanes, self.limits, now, self.shares, plain=not queues.prioritised, rebuilds=rebuilds)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to send now (an empty list: nothing), and when to ask again if nothing happens before."""

    dispatches: list[Dispatch]
    look_at: float | None = None
