"""The grammars of an engine, by number. A thread compiles them, so that no step waits for it."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, NamedTuple

from llguidance import LLMatcher

from tartlet_common.errors.registry import GrammarRefused, TartletError
from tartlet_worker.grammar.compiling import compiled, tokenizer_of
from tartlet_worker.grammar.trial import Trial

log = logging.getLogger("tartlet.worker")

_KEPT: Final = 128
"""Grammars whose outcome is kept after they were forgotten, the last ones used."""
_STACK_BYTES: Final = 64 << 20
"""More than the trial's process has, so that what it survived can't pass the end of the stack here."""

Done = Callable[[int, TartletError | None], None]
"""Is told, by the compiling thread, the number of a grammar and why it can't be used."""


class _Work(NamedTuple):
    number: int
    kind: int
    text: bytes
    done: Done


class Grammars:
    """Compiles grammars and keeps them by number. Any thread may call it."""

    def __init__(self, tokenizer_json: bytes, vocab_size: int, stop_tokens: tuple[int, ...]) -> None:
        """Read the tokenizer.

        Raises:
            ValueError: the engine can't have grammars with this tokenizer.
        """
        if not tokenizer_json or not stop_tokens:
            raise ValueError("the model has no tokenizer.json, or no end-of-sequence token")
        self.vocab_size = vocab_size
        self._tokenizer = tokenizer_of(tokenizer_json, vocab_size, stop_tokens)
        self._trial = Trial(tokenizer_json, vocab_size, stop_tokens)
        self._lock = threading.Lock()
        self._wanted: dict[int, LLMatcher | None] = {}  # None: not compiled yet
        self._outcomes: OrderedDict[bytes, LLMatcher | GrammarRefused] = OrderedDict()  # of the thread, by digest
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def define(self, number: int, kind: int, text: bytes, done: Done) -> None:
        """Begin to compile a grammar. `done` is called once with the outcome."""
        with self._lock:
            self._wanted[number] = None
            if self._thread is None:
                before = threading.stack_size(_STACK_BYTES)
                self._thread = threading.Thread(target=self._run, name="grammars", daemon=True)
                self._thread.start()
                threading.stack_size(before)
        self._work.put(_Work(number, kind, text, done))

    def start(self, number: int) -> LLMatcher | None:
        """Return a matcher of its own at the start of a grammar's texts; None without such a grammar."""
        with self._lock:
            found = self._wanted.get(number)
            return None if found is None else found.deep_copy()

    def forget(self, number: int) -> None:
        """Forget a grammar. Matchers that have begun with it go on."""
        with self._lock:
            self._wanted.pop(number, None)

    def reset(self) -> None:
        """Forget all grammars, because their numbers are those of a link with control that has ended."""
        with self._lock:
            self._wanted.clear()

    def close(self) -> None:
        """End the thread and its process, once they have compiled what was asked for."""
        if self._thread is not None:
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            with self._lock:
                wanted = work.number in self._wanted
            outcome = self._outcome(work) if wanted else GrammarRefused(detail="it was freed meanwhile")
            with self._lock:
                if work.number in self._wanted and not isinstance(outcome, GrammarRefused):
                    self._wanted[work.number] = outcome
            work.done(work.number, outcome if isinstance(outcome, GrammarRefused) else None)
        self._trial.close()

    def _outcome(self, work: _Work) -> LLMatcher | GrammarRefused:
        digest = hashlib.sha256(b"%d " % work.kind + work.text).digest()
        known = self._outcomes.get(digest)
        if known is None:
            try:
                known = compiled(self._tokenizer, self._trial.source(work.kind, work.text))
            except GrammarRefused as e:
                known = e
            self._outcomes[digest] = known
            if len(self._outcomes) > _KEPT:
                self._outcomes.popitem(last=False)
        self._outcomes.move_to_end(digest)
        return known
