"""Drives control's core with fake engines that compile grammars, as `Host` does with those that don't."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from tartlet_common.errors.registry import TartletError
from tartlet_control.tables.engines import EngineState
from tartlet_worker.fake import FakeEngine, FakeOptions
from tests.control.harness import Host

_OUTCOMES: OrderedDict[bytes, Any] = OrderedDict()
"""What came of each text, so that the engines of all tests compile it once."""


class CompilingHost(Host):
    """A host whose engines compile grammars. Their words come one by one, as answers to steps do."""

    def _begin(self, *args: Any) -> None:
        self._words: list[tuple[EngineState, int, TartletError | None]] = []
        self._forgotten: list[tuple[EngineState, FakeEngine, int]] = []
        self.refused: set[bytes] = set()
        """Texts that engines which join from now on refuse."""
        super()._begin(*args)

    def join(self, engine_id: str, options: FakeOptions | None = None, *, old: bool = False) -> EngineState:
        """Add an engine, as `Host.join`."""
        state = super().join(engine_id, options, old=old)
        grammars = self.engines[-1][1].grammars
        assert grammars is not None, "llguidance is installed"
        grammars._outcomes = _OUTCOMES
        return state

    def die(self, *, executed: int = 0) -> None:
        """Lose control, as `Host.die`. Numbers of grammars were the last control's."""
        refused = self.refused
        super().die(executed=executed)
        self.refused = refused
        for _, fake in self.engines:
            assert fake.grammars is not None
            fake.grammars.reset()

    def pump(self) -> None:
        """Let the core form steps, as `Host.pump`, and engines compile what it asks for."""
        super().pump()
        for state, fake in self.engines:
            changes, state.grammars.outgoing = state.grammars.outgoing, []
            for number, kind, text in changes:
                if kind:
                    self._compile(state, fake, number, kind, text)
                else:
                    self._forgotten.append((state, fake, number))
        self._forget()

    def answer(self) -> bool:
        """Tell the core the oldest word on a grammar, or answer the oldest step."""
        if not self._words:
            answered = super().answer()
            self._forget()
            return answered
        state, number, error = self._words.pop(0)
        if self.core.engines.get(state.id) is state:
            self.core.on_grammar(state, number, error)
        self.collect()
        return True

    def _compile(self, state: EngineState, fake: FakeEngine, number: int, kind: int, text: bytes) -> None:
        done = threading.Event()

        def take(at: int, error: TartletError | None) -> None:
            self._words.append((state, at, error))
            done.set()

        assert fake.grammars is not None
        fake.grammars.define(number, kind, b"(" if text in self.refused else text, take)
        assert done.wait(60)

    def _forget(self) -> None:
        """Have engines forget grammars behind the steps that wait."""
        busy = {state for state, _, _ in self._waiting}
        for state, fake, number in self._forgotten:
            if state not in busy and fake.grammars is not None:
                fake.grammars.forget(number)
        self._forgotten = [each for each in self._forgotten if each[0] in busy]

    def close(self) -> None:
        """End the engines' threads and processes."""
        for _, fake in self.engines:
            if fake.grammars is not None:
                fake.grammars.close()
