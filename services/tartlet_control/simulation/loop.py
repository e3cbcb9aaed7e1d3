"""The simulated engines: each runs a round of steps at a time, the calls of lowest rank first (Autellix, Algorithm 1).

A program's calls go to an engine by a placement, as in control: those that run side by side go to one engine, which is
chosen for the first of them. All engines share the process table.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from tartlet_control.order import book as accounts
from tartlet_control.order import orders
from tartlet_control.order.book import Book, Program, Thread
from tartlet_control.order.orders import Order
from tartlet_control.order.ranking import Ranking
from tartlet_control.placement.policies import Placement
from tartlet_control.placement.view import EngineView, Hints, View
from tartlet_control.simulation.costs import Costs
from tartlet_control.simulation.load import Trace


@dataclass(slots=True, eq=False)
class _Call:
    """One active call: what is left of it, and the tokens that the engine keeps for it."""

    thread: Thread
    run: _Run
    prefill: int
    decode: int
    held: int = 0
    """Tokens whose keys and values it needs, whether the engine's memory has them or not."""
    resident: bool = False


@dataclass(slots=True, eq=False)
class _Run:
    """One program of the load as it runs."""

    trace: Trace
    program: Program
    wave: int = -1
    open_calls: int = 0
    server: _Server | None = None
    home: str = ""
    context: int = 0
    """Tokens with which its next calls begin: of the longest call of each wave so far."""
    there: dict[str, int] = field(default_factory=dict)
    """How many of these tokens each engine has computed."""


@dataclass(slots=True)
class Outcome:
    """What came of a load under one order, one entry for each program of the load, in its order."""

    response_s: list[float] = field(default_factory=list)
    waited_s: list[float] = field(default_factory=list)
    """Time in which the program's calls were active and not in a step, summed over its calls."""
    preempted: int = 0
    """How often a call that had run was left out of the next round and went on later."""
    restored: int = 0
    """Tokens that were computed or copied again because the memory had been needed for others."""
    prefilled: int = 0
    """Tokens of prompts that were computed, without those that were restored."""
    ended_s: float = 0.0
    """When the last program ended."""
    engines: list[list[str]] = field(default_factory=list)
    """The engine of each wave of the program's calls."""


def simulate(
    traces: list[Trace],
    order: Order,
    costs: Costs,
    engines: int = 1,
    placement: Placement | None = None,
    *,
    histories: bool = False,
) -> Outcome:
    """Run a load under an order, until all programs have ended.

    Args:
        traces: the programs, by arrival.
        order: which calls go first. Its history learns from the programs that end.
        costs: of the steps.
        engines: that serve the load.
        placement: chooses the engine of each program, or of each of its waves of calls; None: `sticky`.
        histories: whether a call begins with what its program has computed so far, as the calls of a conversation do.
            On an engine that hasn't computed all of that, the rest is prefilled too. Engines forget nothing.
    """
    return _Fleet(traces, order, costs, engines, placement or Placement(), histories=histories).run()


class _Server:
    """One engine: its calls, those that ran in the last round, and whether a round runs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls: Ranking[_Call] = Ranking()
        self.running: set[_Call] = set()
        self.programs: set[Program] = set()  # that have their calls here, or had the last ones
        self.busy = False

    def view(self, costs: Costs, held: int, *, full: bool) -> EngineView:
        """Return what a placement is told.

        Args:
            costs: of the steps.
            held: of the call's tokens, those that the engine has computed.
            full: with the time of what waits, which takes a walk over it.
        """
        waiting_s = 0.0
        if full:
            token_s = costs.step_s(costs.slots) / costs.slots
            waiting_s = sum(costs.prefill_s * call.prefill + token_s * call.decode for call in self.calls)
        return EngineView(self.name, len(self.calls), len(self.programs), waiting_s, 1 << 40, costs.prefill_s, held)


class _Fleet:
    def __init__(
        self,
        traces: list[Trace],
        order: Order,
        costs: Costs,
        engines: int,
        placement: Placement,
        *,
        histories: bool,
    ) -> None:
        self.order = order
        self.costs = costs
        self.traces = traces
        self.placement = placement
        self.histories = histories
        self.book = Book()
        self.servers = {name: _Server(name) for name in (f"e{n:03d}" for n in range(engines))}
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers = count()
        self.placed = 0
        self.now = 0.0
        self.outcome = Outcome([0.0] * len(traces), [0.0] * len(traces), engines=[[] for _ in traces])

    def at(self, when: float, event: Callable[[], None]) -> None:
        heapq.heappush(self.events, (when, next(self.numbers), event))

    def run(self) -> Outcome:
        for index, trace in enumerate(self.traces):
            self.at(trace.arrival_s, lambda index=index: self._arrive(index))  # type: ignore[misc]
        while self.events:
            self.now = self.events[0][0]
            while self.events and self.events[0][0] <= self.now:
                heapq.heappop(self.events)[2]()
            for server in self.servers.values():
                if server.calls and not server.busy:
                    self._round(server)
        self.outcome.ended_s = self.now
        return self.outcome

    def _arrive(self, index: int) -> None:
        trace = self.traces[index]
        program = self.book.add(str(index), ("", trace.name, ""), trace.arrival_s)
        program.number = index
        program.remaining_s = self.costs.served_s(trace)
        self._next_wave(_Run(trace, program))

    def _next_wave(self, run: _Run) -> None:
        run.wave += 1
        if run.wave == len(run.trace.waves):
            self._end(run)
            return
        pause = run.trace.pauses_s[run.wave] if run.trace.pauses_s else 0.0
        if pause:
            self.at(self.now + pause, lambda: self._begin(run))
        else:
            self._begin(run)

    def _begin(self, run: _Run) -> None:
        wave = run.trace.waves[run.wave]
        run.open_calls = len(wave)
        server = self._seat(run, wave[0][0])
        missing = max(0, run.context - run.there.get(server.name, 0))
        for number, (prefill, decode) in enumerate(wave):
            thread = run.program.threads.setdefault(number, Thread(run.program))
            accounts.waits(thread, self.now)
            server.calls.add(_Call(thread, run, missing + prefill, decode), thread)
            self.outcome.prefilled += missing + prefill
            missing = 0  # the first call of the wave computes it for all
        if self.histories and len(self.servers) > 1:
            run.context += max(prefill + decode for prefill, decode in wave)
        run.there[server.name] = run.context

    def _seat(self, run: _Run, prefill: int) -> _Server:
        """Return the engine of a program's next calls, of which the first begins with so many new tokens."""
        server = run.server
        if server is None or self.placement.places_anew:
            if server is not None:
                server.programs.discard(run.program)
            server = self._choose(run, run.context + prefill)
            server.programs.add(run.program)
            run.server = server
        self.outcome.engines[run.program.number].append(server.name)
        return server

    def _choose(self, run: _Run, tokens: int) -> _Server:
        if len(self.servers) == 1:
            return next(iter(self.servers.values()))
        held, full = run.there, self.placement.name == "locality"
        views = (server.view(self.costs, held.get(name, 0), full=full) for name, server in self.servers.items())
        view = View(tuple(views), self.placed)
        self.placed += 1
        last = "" if run.server is None else run.server.name
        name = self.placement.place(view, Hints(tokens, home=run.home, last=last))
        if tokens > self.placement.short_tokens:
            run.home = name
        return self.servers[name]

    def _end(self, run: _Run) -> None:
        program = run.program
        index = program.number
        if run.server is not None:
            run.server.programs.discard(program)
        self.book.remove(str(index))
        self.order.history.ended(program.key, program.service_s, program.tokens)
        self.outcome.response_s[index] = self.now - program.arrived_s

    # ---- rounds ---------------------------------------------------------------------------------------------------

    def _round(self, server: _Server) -> None:
        """Begin a round with the calls of lowest rank that fit; calls that are left over wait."""
        order, now = self.order, self.now
        chosen, restore_s = self._fitting([call for _, _, call in server.calls.ordered(order, now)])
        for call in server.running.difference(chosen):
            self.outcome.preempted += 1
            accounts.waits(call.thread, now)
        for call in chosen:
            orders.chosen(order, call.thread, now)
            accounts.runs(call.thread, now)
        costs = self.costs
        steps = min(costs.every, *(call.decode for call in chosen))
        takes_s = steps * costs.step_s(len(chosen)) + restore_s + sum(costs.prefill_s * call.prefill for call in chosen)
        server.busy = True
        self.at(now + takes_s, lambda: self._finish(server, chosen, steps))

    def _fitting(self, calls: list[_Call]) -> tuple[list[_Call], float]:
        """Return the calls of the next round, and the time to bring back what they need that has left the memory.

        Calls that aren't chosen leave the memory from the end of the order, as far as the chosen ones need theirs.
        """
        costs = self.costs
        if not costs.memory_tokens:
            return calls[: costs.slots], 0.0
        chosen: list[_Call] = []
        need = 0
        for call in calls:
            tokens = call.held + call.prefill + min(costs.every, call.decode)
            if len(chosen) == costs.slots or (chosen and need + tokens > costs.memory_tokens):
                break
            chosen.append(call)
            need += tokens
        moved_s = 0.0
        behind = [call for call in calls[len(chosen) :] if call.resident]
        held = sum(call.held for call in behind)
        while behind and need + held > costs.memory_tokens:
            call = behind.pop()
            call.resident = False
            held -= call.held
            if costs.swaps:
                moved_s += costs.swap_s * call.held
        for call in chosen:
            if call.held and not call.resident:
                self.outcome.restored += call.held
                moved_s += (costs.swap_s if costs.swaps else costs.prefill_s) * call.held
            call.resident = True
        return chosen, moved_s

    def _finish(self, server: _Server, chosen: list[_Call], steps: int) -> None:
        """Account for a round that has ended, and let the calls end that are done."""
        costs = self.costs
        share_s = steps * costs.step_s(len(chosen)) / len(chosen)
        ended = []
        for call in chosen:
            served = share_s + costs.prefill_s * call.prefill
            tokens = steps + call.prefill
            call.held += tokens
            call.prefill = 0
            call.decode -= steps
            accounts.serve(call.thread, served, tokens)
            call.run.program.remaining_s -= served
            if not call.decode:
                ended.append(call)
        server.busy = False
        server.running = set(chosen).difference(ended)
        for call in ended:
            server.calls.discard(call)
            accounts.ends_call(call.thread, self.now)
            call.run.open_calls -= 1
        go_on = [run for run in dict.fromkeys(call.run for call in ended) if not run.open_calls]
        for run in sorted(go_on, key=lambda run: run.wave + 1 < len(run.trace.waves)):  # those that end leave first
            self._next_wave(run)
