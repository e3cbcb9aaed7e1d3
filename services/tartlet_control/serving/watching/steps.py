"""Notes the latest steps of engines and the calls of single programs, while somebody looks at them.

While nobody looks, the core calls nothing here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from tartlet_common.engine.step import Kind, StepResult
from tartlet_control.batching.batcher import SentStep
from tartlet_control.core.settler import Settler
from tartlet_control.tables.engines import EngineState
from tartlet_control.tables.programs import ProgramState

MOST_STEPS: Final = 64
"""Steps of an engine that are kept: the latest."""
MOST_CALLS: Final = 1000
"""Calls of a program that are kept until they are taken: the latest."""
_KINDS: Final = {int(kind): kind.name.lower() for kind in Kind}
_REBUILDING: Final = "rebuild"
"""What is shown for a command of control's own, which makes lost state again."""

Steps = deque[tuple[Any, ...]]
"""Of each step: its number, when it was sent and answered (seconds of control's clock), its seconds on the device, and
its numbers of tokens, commands and programs."""


class Calls:
    """The calls of one program that were answered and not taken yet."""

    def __init__(self, program: ProgramState) -> None:
        self.program = program
        self._calls: deque[dict[str, Any]] = deque(maxlen=MOST_CALLS)
        self._left_out = 0

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._calls)

    def add(self, call: dict[str, Any]) -> None:
        """Note a call, in place of the oldest one if there are too many."""
        self._left_out += len(self._calls) == MOST_CALLS
        self._calls.append(call)

    def take(self) -> dict[str, Any]:
        """Return the calls, and how many older ones were left out."""
        told = {"calls": list(self._calls), "left_out": self._left_out}
        self._calls.clear()
        self._left_out = 0
        return told


class StepsSeen:
    """The steps of all engines, for those who look."""

    def __init__(self, settler: Settler) -> None:
        self._settler = settler
        self._engines: dict[str, Steps] = {}
        self._looking = 0
        self._calls: list[Calls] = []

    @contextmanager
    def engines(self) -> Iterator[Mapping[str, Steps]]:
        """Keep each engine's latest steps, by engine id, until the block ends."""
        self._looking += 1
        self._settler.on_watched = self._note
        try:
            yield self._engines
        finally:
            self._looking -= 1
            if not self._looking:
                self._engines.clear()
            self._rest()

    @contextmanager
    def program(self, program: ProgramState) -> Iterator[Calls]:
        """Keep a program's calls until the block ends."""
        calls = Calls(program)
        self._calls.append(calls)
        self._settler.on_watched = self._note
        try:
            yield calls
        finally:
            self._calls.remove(calls)
            self._rest()

    def _rest(self) -> None:
        if not (self._looking or self._calls):
            self._settler.on_watched = None

    def _note(self, engine: EngineState, sent: SentStep, result: StepResult, now: float) -> None:
        if self._looking:
            steps = self._engines.setdefault(engine.id, deque(maxlen=MOST_STEPS))
            programs = len({queue.program.id for queue in sent.queues})
            took = round(sent.sent_s, 5), round(now, 5), round(result.device_s, 5)
            steps.append((sent.number, *took, sent.tokens, sum(map(len, sent.batches)), programs))
        for calls in self._calls:
            if any(queue.program is calls.program for queue in sent.queues):
                _note_calls(calls, engine, sent, now)


def _note_calls(calls: Calls, engine: EngineState, sent: SentStep, now: float) -> None:
    began = calls.program.started_s
    together = sum(map(len, sent.batches))
    for batch in sent.batches:
        for command in batch:
            queue = command.queue
            if queue.program is calls.program:
                calls.add(
                    {
                        "queue": queue.id,
                        "call": _KINDS[command.kind] if queue.id >= 0 else _REBUILDING,
                        "tokens": command.tokens,
                        "arrived_s": round(command.arrived - began, 5),
                        "sent_s": round(sent.sent_s - began, 5),
                        "answered_s": round(now - began, 5),
                        "step": sent.number,
                        "engine": engine.id,
                        "commands": together,
                    }
                )
