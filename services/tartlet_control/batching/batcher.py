"""`Batcher`: decides for one engine when a step is sent and what is in it.

The rest of control tells it what happens (a queue has something to send, a step was sent, a step was answered) and
asks it for plans. Policies, predictions of step times and of returns, and all their constants are behind this class.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from math import inf
from typing import Any

from tartlet_control.batching import accounting
from tartlet_control.batching.gather import Dispatch, Limits, gather
from tartlet_control.batching.policies import Policy
from tartlet_control.batching.return_times import WORTH, ReturnTimes
from tartlet_control.batching.rivals import LEAST_TOKENS, Rivals, shared_tokens
from tartlet_control.batching.step_times import StepTimes
from tartlet_control.batching.view import Away, View
from tartlet_control.batching.waiting import Waiting
from tartlet_control.calls.registry import RUNS_LAYERS
from tartlet_control.order import book
from tartlet_control.order.orders import Order
from tartlet_control.order.shares import Shares
from tartlet_control.tables.programs import Command, CommandQueue, ProgramState


def layer_tokens(commands: Iterable[Command]) -> int:
    """Return how many tokens commands send through the model's layers."""
    return sum(command.tokens for command in commands if command.kind in RUNS_LAYERS)


class SentStep:
    """A step on its way: the commands of its batches, to match with the answers."""

    __slots__ = ("batches", "charged", "number", "of_tenant", "queues", "sent_s", "span", "tokens", "usual_s")

    def __init__(
        self, number: int, batches: list[list[Command]], queues: list[CommandQueue], sent_s: float, span: Any = None
    ) -> None:
        self.number = number
        self.batches = batches
        self.queues = queues
        self.tokens = sum([c.tokens for commands in batches if commands[0].kind in RUNS_LAYERS for c in commands])
        self.sent_s = sent_s
        self.usual_s = 0.0  # what such a step usually takes; known once it is answered
        self.span = span
        self.of_tenant = accounting.tokens_of_tenants(batches, queues, self.tokens)
        self.charged: dict[str, float] = {}  # device time that tenants were charged in advance, over their weights


class Batcher:
    """The queues of one engine that have something to send, its steps in flight, and the policy over both."""

    __slots__ = (
        "_began_s", "_depth", "_going", "_limits", "_policy", "in_flight", "look_at", "only", "order", "return_times",
        "rivals", "shares", "times", "waiting",
    )  # fmt: skip

    def __init__(
        self, policy: Policy, depth: int, limits: Limits, order: Order | None = None, shares: Shares | None = None
    ) -> None:
        """`depth`: steps that may be in flight at once; `shares`: of the tenants."""
        self.shares = shares or Shares()
        self.order = order or Order()
        """Which program's commands go first. Another order takes effect with the next plan."""
        self.waiting = Waiting()  # queues with an engine command at their head
        self.in_flight: deque[SentStep] = deque()
        self.only: ProgramState | None = None
        """A program that may have killed engines: nothing else shares its steps."""
        self.look_at: float | None = None  # when to ask for a plan again if nothing happens before
        self.times = StepTimes()
        self.return_times = ReturnTimes()
        self.rivals = Rivals()
        self._policy = policy
        self._depth = depth
        self._limits = limits
        self._going: dict[CommandQueue, None] = {}  # that were in the last step that they could be in
        self._began_s = 0.0  # when the oldest step in flight began to run

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is in flight."""
        return not self.waiting and not self.in_flight

    @property
    def waiting_s(self) -> float:
        """Predict the device time of everything that waits, in seconds. Any thread may ask."""
        pending = [command for queue in list(self.waiting) for command in list(queue.pending)]
        return self.work_s(layer_tokens(pending))

    def work_s(self, tokens: int) -> float:
        """Predict the device time of so many tokens, in seconds."""
        return self.times.work(tokens, self._limits.batch_tokens)

    @property
    def takes_parts(self) -> bool:
        """Whether a step should be formed of a part of a runtime's frame, though the rest follows at once."""
        return self.return_times.split and bool(self.waiting) and not self.in_flight

    # ---- queues -------------------------------------------------------------------------------------------------

    def ready(self, queue: CommandQueue, arrived: float) -> None:
        """Take up a queue whose head is an engine command, which arrived then."""
        if queue.answered_s:
            self.return_times.back(queue, arrived)
        accounting.ready(queue, arrived)
        self.waiting.add(queue)

    def unready(self, queue: CommandQueue) -> None:
        """Drop a queue that has nothing for the engine now."""
        if self.waiting.discard(queue):
            book.withdraws(queue.thread)

    def forget(self, queue: CommandQueue) -> None:
        """Drop a queue that has ended."""
        self.waiting.discard(queue)
        self.return_times.forget(queue)
        if queue in self._going:
            del self._going[queue]
            book.keeps_on(queue.thread, goes_on=False)

    def clear(self) -> list[SentStep]:
        """Drop everything, because the engine is gone. Returns the steps that it will never answer."""
        for queue in list(self.waiting):
            self.unready(queue)
        lost = list(self.in_flight)
        self.in_flight.clear()
        self.return_times.clear()
        for queue in self._going:
            book.keeps_on(queue.thread, goes_on=False)
        self._going.clear()
        return lost

    # ---- steps --------------------------------------------------------------------------------------------------

    def plan(self, now: float) -> list[Dispatch]:
        """Return the batches to send now; empty if none. `look_at` then says when to ask again."""
        self.look_at = None
        if not self.waiting or len(self.in_flight) >= self._depth:
            return []
        if self.only is not None:
            alone = Waiting()
            for queue in self.waiting:
                if queue.program is self.only:
                    alone.add(queue)
            lanes, rebuilds = alone.lanes(self.order, now), all(queue.id < 0 for queue in alone)
            dispatches = [] if self.in_flight else gather(lanes, self._limits, now, rebuilds=rebuilds)
            alone.clear()
            return dispatches
        limits = self._limits
        if self.rivals.several(self.waiting.tenants) and any(queue.pending[0].tokens > 1 for queue in self.waiting):
            in_flight = {tenant for sent in self.in_flight for tenant in sent.of_tenant}
            until = self.rivals.awaited(self.waiting.tenants, in_flight, self.shares.time, now)
            if until:
                self.look_at = None if until == inf else until
                return []
            limits = replace(limits, layer_tokens=shared_tokens(self.times, limits.batch_tokens))
        plan = self._policy(self._view(now, limits), now)
        if not plan.dispatches:
            self.look_at = plan.look_at
        return plan.dispatches

    def sent(self, step: SentStep) -> None:
        """Take note of a step that was sent."""
        if not self.in_flight:
            self._began_s = step.sent_s
        accounting.sent(step.batches, step.queues, self.waiting, self._going, self.order, step.sent_s)
        step.charged = self.shares.sent(step.of_tenant)
        self.rivals.sent(step.of_tenant, step.sent_s)
        self.in_flight.append(step)

    def answered(self, computed_tokens: int, device_s: float, now: float) -> SentStep:
        """Take note that the oldest step in flight was answered; returns that step."""
        step = self.in_flight.popleft()
        self._began_s = now  # of the next step, if there is one
        self.times.add(computed_tokens, device_s)
        step.usual_s = self.times.predict(step.tokens)
        return step

    def settled(self, step: SentStep, device_s: float, now: float) -> None:
        """Take note that the commands of an answered step are settled."""
        self.return_times.answered(step.queues, self._apart_s(step.tokens), now)
        self.shares.settled(step.charged, step.of_tenant, device_s)
        self.rivals.answered(step.queues, self.times.least(LEAST_TOKENS), now)
        accounting.settled(step.batches, step.queues, self.waiting, device_s, now)

    def ranked(self, now: float) -> list[CommandQueue]:
        """Return the queues that wait, by the order of programs."""
        return self.waiting.ranked(self.order, now)

    def _view(self, now: float, limits: Limits) -> View:
        return View(
            self.waiting,
            len(self.in_flight),
            self._depth,
            limits,
            self.order,
            self.shares if len(self.waiting.tenants) > 1 else None,
            running=self._running(),
            away=self._away(),
            expected=self.return_times.expected(now),
        )

    def _running(self) -> tuple[float, float]:
        """Predict when the step that runs now ends, and how long it takes in all; 0, 0 without one."""
        if not self.in_flight:
            return 0.0, 0.0
        takes_s = self.times.predict(self.in_flight[0].tokens)
        return self._began_s + takes_s, takes_s

    def _away(self) -> Away:
        """Count the queues that wait for an answer, and how soon they come back."""
        if not self.in_flight:
            return Away()
        live = {q for sent in self.in_flight for q in sent.queues if q.program.live}
        away = [q for q in live if not q.pending]
        worth_s = WORTH * self._apart_s(sum(sent.tokens for sent in self.in_flight))
        soon = [q.returns_s for q in away if q.returns_s <= worth_s]
        return Away(len(away), len(live) - len(away), len(soon), max(soon, default=0.0), worth_s)

    def _apart_s(self, tokens: int) -> float:
        """Predict what is lost if programs with these tokens and those that wait don't meet in one step."""
        return self.times.beyond_one(tokens + len(self.waiting))
