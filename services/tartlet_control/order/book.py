"""The process table of Autellix 4.2.1: for each running program its service, its waiting and its active calls.

A thread is one command queue of a program. A call is a period in which the thread always had something to compute:
the call begins with the first command after the thread was idle, and ends when the thread is idle again. A program that
reads each token before it asks for the next is idle for a moment after each: `CALL_GAP_S` says how long a moment is.
A call also ends with its context: an agent that closes one context and opens the next at once begins another call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Final

CALL_GAP_S: Final = 0.05
"""A thread that is idle for at most this long goes on with its call. A tool's answer usually takes longer."""

Key = tuple[str, str, str]
"""Tenant, name and digest of a program: runs of equal keys are expected to need similar service."""


@dataclass(slots=True, eq=False)
class Thread:
    """One thread of a program and the call that is active in the thread, if one is."""

    program: Program
    arrived_s: float = 0.0
    """When the active call began."""
    base_s: float = 0.0
    """The program's critical path when the active call began, in seconds of device time."""
    service_s: float = 0.0
    """Device time that the active call has had."""
    waited_s: float = 0.0
    """Time that the active call has waited, before `waits_since`."""
    waits_since: float | None = None
    """Since when the active call has been waiting; None while it computes or no call is active."""
    forgiven: tuple[float, float] = (0.0, 0.0)
    """Waiting and service of the active call that no longer count towards starvation (Algorithm 1, line 29)."""
    turn_steps: int = 0
    """Steps of the active call since the order chose it last; 0: it isn't chosen."""
    turn_s: float = 0.0
    """Device time of these steps."""
    active: bool = False
    goes_on: bool = False
    """The active call was in the last step that it could be in."""
    idle_since: float | None = None
    """Since when the active call has had nothing to compute; None while it waits or computes."""

    def wait_s(self, now: float) -> float:
        """Return how long the active call has waited in all."""
        return self.waited_s if self.waits_since is None else self.waited_s + now - self.waits_since


@dataclass(slots=True, eq=False)
class Program:
    """One running program in the process table."""

    number: int
    """Its place in the order of arrival; no two programs share one."""
    key: Key = ("", "", "")
    arrived_s: float = 0.0
    service_s: float = 0.0
    """Device time of all its calls together, in seconds. A step's time is shared by the programs in the step."""
    critical_s: float = 0.0
    """Device time of the longest chain of its calls that was seen (Autellix, equation 2)."""
    waited_s: float = 0.0
    """Time that its ended calls have waited."""
    tokens: int = 0
    """Tokens that were computed for it, prompts included."""
    expected_to: int = 0
    """How many tokens it will have computed in all, by what it said last; 0: it said nothing."""
    believed_to: int = 0
    """Up to how many tokens what it says may put it before others; 0: it said nothing yet."""
    boosted_to_s: float = 0.0
    """The program goes before others until its service reaches this, because it had starved."""
    last_arrival_s: float = 0.0
    last_completion_s: float = 0.0
    remaining_s: float = inf
    """Device time that the program still needs. Only a simulation knows this."""
    threads: dict[int, Thread] = field(default_factory=dict)
    watchers: list[Callable[[Program], None]] = field(default_factory=list)
    """Called when something that ranks depend on was noted of the program."""

    def wait_s(self, now: float, threads: Iterable[Thread]) -> float:
        """Return how long the calls of the program have waited, with the active ones of its `threads`."""
        return self.waited_s + sum(t.wait_s(now) - t.forgiven[0] for t in threads if t.active)


class Book:
    """The process table: the programs that run, and what is noted of them as they do."""

    __slots__ = ("_number", "programs")

    def __init__(self) -> None:
        self.programs: dict[str, Program] = {}
        self._number = 0

    def add(self, program_id: str, key: Key, now: float) -> Program:
        """Enter a program that starts now."""
        self._number += 1
        program = self.programs[program_id] = Program(self._number, key, arrived_s=now, last_arrival_s=now)
        return program

    def remove(self, program_id: str) -> Program | None:
        """Drop a program that has ended; returns its last state, None if it isn't here."""
        return self.programs.pop(program_id, None)


def changed(program: Program) -> None:
    """Tell those who keep ranks of a program's threads that the ranks may have changed."""
    for watcher in program.watchers:
        watcher(program)


def waits(thread: Thread, now: float) -> None:
    """Note that a thread has something to compute and waits for a step. A thread that was idle begins a call."""
    if thread.idle_since is not None:
        if now - thread.idle_since > CALL_GAP_S:
            ends_call(thread, thread.idle_since)
        thread.idle_since = None
    if not thread.active:
        program = thread.program
        thread.active = True
        thread.arrived_s = program.last_arrival_s = now
        thread.base_s = program.critical_s
        thread.service_s = thread.waited_s = 0.0
        thread.forgiven = (0.0, 0.0)
    if thread.waits_since is None:
        thread.waits_since = now
        changed(thread.program)


def runs(thread: Thread, now: float) -> None:
    """Note that a thread's command is in a step from now on."""
    if thread.waits_since is not None:
        thread.waited_s += now - thread.waits_since
        thread.waits_since = None
        changed(thread.program)


def idles(thread: Thread, now: float) -> None:
    """Note that a thread has nothing to compute now. Whether its call has ended shows when it computes again."""
    runs(thread, now)
    thread.idle_since = now


def withdraws(thread: Thread) -> None:
    """Note that what a thread waited for won't be computed. The wait so far doesn't count."""
    if thread.waits_since is not None:
        thread.idle_since, thread.waits_since = thread.waits_since, None
        changed(thread.program)


def serve(thread: Thread, device_s: float, tokens: int = 0) -> None:
    """Charge a thread with its share of a step's device time, in which so many of its tokens were computed."""
    program = thread.program
    program.tokens += tokens
    thread.service_s += device_s
    thread.turn_s += device_s
    program.service_s += device_s
    program.critical_s = max(program.critical_s, thread.base_s + thread.service_s)
    changed(program)


def keeps_on(thread: Thread, *, goes_on: bool) -> None:
    """Note whether a thread's active call was in the step that was formed last."""
    if thread.goes_on != goes_on:
        thread.goes_on = goes_on
        changed(thread.program)


def ends_call(thread: Thread, now: float) -> None:
    """Note that a thread has nothing more to compute for now."""
    if thread.active:
        runs(thread, now)
        program = thread.program
        program.waited_s += thread.waited_s - thread.forgiven[0]
        program.last_completion_s = now
        thread.active = thread.goes_on = False
        thread.idle_since = None
        thread.turn_steps, thread.turn_s = 0, 0.0
        thread.waited_s = thread.service_s = 0.0
        thread.forgiven = (0.0, 0.0)
        changed(program)


def closes(thread: Thread, now: float) -> None:
    """Note that a thread's context has ended. What the thread computes next is another call, however soon."""
    if thread.active:
        idle_since = thread.idle_since
        ends_call(thread, max(now, thread.waits_since or now) if idle_since is None else idle_since)
        thread.idle_since = idle_since


def boost(thread: Thread, quantum_s: float, now: float) -> None:
    """Let a starved program go first for one quantum; its call's waiting and service so far stop counting."""
    program = thread.program
    program.boosted_to_s = program.service_s + quantum_s
    thread.forgiven = (thread.wait_s(now), thread.service_s)
    changed(program)
