"""The simulated engine: a round of steps at a time, the calls of lowest rank first (Autellix, Algorithm 1)."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from tartlet_control.order import book as accounts
from tartlet_control.order import orders
from tartlet_control.order.book import Book, Program, Thread
from tartlet_control.order.orders import Order, starved
from tartlet_control.simulation.costs import Costs
from tartlet_control.simulation.load import Trace


@dataclass(slots=True, eq=False)
class _Call:
    """One active call: what is left of it."""

    thread: Thread
    run: _Run
    prefill: int
    decode: int


@dataclass(slots=True, eq=False)
class _Run:
    """One program of the load as it runs."""

    trace: Trace
    program: Program
    wave: int = -1
    open_calls: int = 0


@dataclass(slots=True)
class Outcome:
    """What came of a load under one order, one entry for each program of the load, in its order."""

    response_s: list[float] = field(default_factory=list)
    waited_s: list[float] = field(default_factory=list)
    """Time in which the program's calls were active and not in a step, summed over its calls."""
    preempted: int = 0
    """How often a call that had run was left out of the next round and went on later."""


def simulate(traces: list[Trace], order: Order, costs: Costs) -> Outcome:
    """Run a load under an order, until all programs have ended.

    Args:
        traces: the programs, by arrival.
        order: which calls go first. Its history learns from the programs that end.
        costs: of the steps.
    """
    return _Engine(traces, order, costs).run()


class _Engine:
    def __init__(self, traces: list[Trace], order: Order, costs: Costs) -> None:
        self.order = order
        self.costs = costs
        self.traces = traces
        self.book = Book()
        self.calls: list[_Call] = []
        self.due: list[tuple[float, int, _Run]] = []  # waves that begin later
        self.now = 0.0
        self.outcome = Outcome([0.0] * len(traces), [0.0] * len(traces))
        self.running: set[_Call] = set()

    def run(self) -> Outcome:
        arriving = 0
        while arriving < len(self.traces) or self.due or self.calls:
            if not self.calls:
                times = [self.due[0][0]] if self.due else []
                if arriving < len(self.traces):
                    times.append(self.traces[arriving].arrival_s)
                self.now = max(self.now, min(times))
            while arriving < len(self.traces) and self.traces[arriving].arrival_s <= self.now:
                self._arrive(arriving)
                arriving += 1
            while self.due and self.due[0][0] <= self.now:
                self._begin(heapq.heappop(self.due)[2])
            if self.calls:
                self._round()
        return self.outcome

    def _arrive(self, index: int) -> None:
        trace = self.traces[index]
        program = self.book.add(str(index), ("", trace.name, ""), trace.arrival_s)
        program.number = index
        program.remaining_s = self.costs.served_s(trace)
        self._next_wave(_Run(trace, program), trace.arrival_s)

    def _next_wave(self, run: _Run, now: float) -> None:
        run.wave += 1
        if run.wave == len(run.trace.waves):
            self._end(run.program, now)
            return
        pause = run.trace.pauses_s[run.wave] if run.trace.pauses_s else 0.0
        if pause:
            heapq.heappush(self.due, (now + pause, run.program.number, run))
        else:
            self._begin(run)

    def _begin(self, run: _Run) -> None:
        wave = run.trace.waves[run.wave]
        run.open_calls = len(wave)
        for number, (prefill, decode) in enumerate(wave):
            thread = run.program.threads.setdefault(number, Thread(run.program))
            accounts.waits(thread, self.now)
            self.calls.append(_Call(thread, run, prefill, decode))

    def _end(self, program: Program, now: float) -> None:
        index = program.number
        self.book.remove(str(index))
        self.order.history.ended(program.key, program.service_s, program.tokens)
        self.outcome.response_s[index] = now - program.arrived_s

    def _round(self) -> None:
        """Run the calls of lowest rank for some steps; calls of one program that are left over wait."""
        order, now = self.order, self.now
        rank = order.rank
        self.calls.sort(key=lambda call: rank(call.thread, now))
        chosen, left = self.calls[: self.costs.slots], self.calls[self.costs.slots :]
        for call in left:
            if call in self.running:
                self.outcome.preempted += 1
            accounts.waits(call.thread, now)
        for call in chosen:
            if starved(order, call.thread, now):
                accounts.boost(call.thread, order.quantum_s, now)
            orders.chosen(order, call.thread)
            accounts.runs(call.thread, now)
        ended = self._steps(chosen)
        self.running = set(chosen).difference(ended)
        self.calls = [call for call in self.calls if call.decode]
        for call in ended:
            accounts.ends_call(call.thread, self.now)
            call.run.open_calls -= 1
            if not call.run.open_calls:
                self._next_wave(call.run, self.now)

    def _steps(self, chosen: list[_Call]) -> list[_Call]:
        """Run steps for these calls until one ends or `every` steps have run. Returns the calls that ended."""
        costs = self.costs
        steps = min(costs.every, *(call.decode for call in chosen))
        step_s = costs.step_s(len(chosen))
        share_s = steps * step_s / len(chosen)
        ended = []
        for call in chosen:
            served, tokens = share_s, steps + call.prefill
            if call.prefill:
                prefill_s = costs.prefill_s * call.prefill
                self.now += prefill_s
                served += prefill_s
                call.prefill = 0
            call.decode -= steps
            accounts.serve(call.thread, served, tokens)
            call.run.program.remaining_s -= served
            if not call.decode:
                ended.append(call)
        self.now += steps * step_s
        return ended
