"""Matchers: how far the text of a token slot has come in its grammar, and which tokens may follow.

A matcher is a function of its grammar's text and of the tokens that it has taken. A `sample` that begins one names
both, and each later `sample` of the slot adds its own token. A `sample` that fails changes no matcher. So control can
make matchers again on another engine. The next mask is computed while the engine computes the next `forward`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from time import thread_time
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import psutil
from llguidance import LLExecutor, LLMatcher

from tartlet_common.abi import MAX_FORCED
from tartlet_common.engine.sample_options import SampleOptions
from tartlet_common.errors.registry import EngineFailure, GrammarRefused, InvalidArgument, TartletError
from tartlet_worker.grammar.grammars import Grammars

Words = npt.NDArray[np.int32]
MAX_MATCHERS: Final = 4096
"""Token slots of an engine that may have a matcher at one time."""
GRACE_S: Final = 0.25
"""Processor time that a text may take beyond `TOKEN_S` for each of its tokens: lexers grow with the first ones."""
TOKEN_S: Final = 0.001
_AT_ONCE: Final = 8
"""Tokens that are taken before the time is looked at: those of an ambiguous grammar take ever longer."""
_MAX_THREADS: Final = 8


class _Masks:
    """Masks that are computed beside the engine's thread: words [R, W] int32, a bit for each token."""

    def __init__(self, matchers: list[LLMatcher], width: int, threads: tuple[ThreadPoolExecutor, LLExecutor]) -> None:
        self._words = np.zeros((len(matchers), width), np.int32)
        rows = [(matcher, row) for row, matcher in enumerate(matchers)]
        pool, executor = threads
        size = 4 * width
        at = self._words.ctypes.data
        self._done: Future[None] = pool.submit(executor.unsafe_compute_mask_ptr, rows, at, size, len(rows))

    def words(self) -> Words:
        """Return the masks [R, W], once they are computed."""
        self._done.result()
        return self._words


class _State:
    """The matcher of one slot, and its next mask."""

    __slots__ = ("masks", "matcher", "num_tokens", "row", "spent_s", "stopped")

    def __init__(self, matcher: LLMatcher, num_tokens: int = 0, spent_s: float = 0.0) -> None:
        self.matcher = matcher
        self.num_tokens = num_tokens
        self.spent_s = spent_s  # processor time that these tokens took
        self.masks: _Masks | None = None
        self.row = 0
        self.stopped = matcher.is_stopped()  # nothing can follow

    def take(self, tokens: list[int]) -> int:
        """Take tokens as far as they fit; return how many that are."""
        if self.masks is not None:
            self.masks.words()  # a thread has the matcher until then
            self.masks = None
        taken = 0
        while taken < len(tokens) and not self.is_slow:
            some = tokens[taken : taken + _AT_ONCE]
            begin_s = thread_time()
            fit = self.matcher.try_consume_tokens(some)
            self.spent_s += thread_time() - begin_s
            self.num_tokens += fit
            taken += fit
            if fit < len(some):
                break
        self.stopped = self.matcher.is_stopped()
        return taken

    @property
    def is_slow(self) -> bool:
        """Whether the text has taken so much time that the engine's other programs would wait for it."""
        return self.spent_s > GRACE_S + TOKEN_S * self.num_tokens

    def forced(self) -> list[int]:
        """Return tokens of which each is the only one that may follow; behind the last one the text can go on."""
        tokens = self.matcher.compute_ff_tokens()[:MAX_FORCED]
        if tokens:
            behind = self.matcher.deep_copy()
            del tokens[behind.try_consume_tokens(tokens) :]
            if tokens and behind.is_stopped():
                tokens.pop()
        return tokens

    def copy(self) -> _State:
        """Return a state of its own that has come as far."""
        if self.masks is not None:
            self.masks.words()
        return _State(self.matcher.deep_copy(), self.num_tokens, self.spent_s)


class Advanced(NamedTuple):
    """What follows a token that a matcher has taken."""

    stopped: bool  # nothing can
    forced: Sequence[int] = ()  # these tokens must, if that was asked


class Matchers:
    """The matchers of an engine's token slots. The engine's thread alone calls it."""

    def __init__(self, grammars: Grammars | None) -> None:
        self._grammars = grammars
        self._of: dict[int, _State] = {}
        self._prepared: dict[int, _State] = {}  # of slots whose samples began or moved on, until their tokens are there
        self._width = 0 if grammars is None else -(-grammars.vocab_size // 32)

    def prepare(
        self, asked: Mapping[int, tuple[int, SampleOptions]]
    ) -> tuple[dict[int, Words], dict[int, TartletError]]:
        """Return which tokens each of some samples may choose.

        Args:
            asked: token slot and options of each sample, by a key of the caller's.

        Returns:
            By key, a mask [W] with a bit for each token, or why the sample can't be made.
        """
        self._prepared.clear()
        states: dict[int, _State] = {}
        errors: dict[int, TartletError] = {}
        for key, (slot, options) in asked.items():
            try:
                states[key] = self._state(slot, options)
            except (InvalidArgument, GrammarRefused, EngineFailure) as e:
                errors[key] = e
        self._fill([state for state in states.values() if state.masks is None])
        masks: dict[int, Words] = {}
        for key, state in states.items():
            assert state.masks is not None, "just filled"
            try:
                words = state.masks.words()[state.row]
                masks[key] = _allowed(words, state.matcher, asked[key][1], self._grammars)
            except (InvalidArgument, GrammarRefused) as e:
                errors[key] = e
            except Exception as e:  # noqa: BLE001 - the library's: one matcher's fault ends one command
                errors[key] = GrammarRefused(detail=str(e)[:200])
        return masks, errors

    def _state(self, slot: int, options: SampleOptions) -> _State:
        """Return the slot's state, begun or moved on as the options say. `advance` makes it the slot's own."""
        assert options.grammar is not None, "the caller has looked"
        number, tokens = options.grammar
        if number:
            state = _State(self._begin(number, slot))
        elif (known := self._of.get(slot)) is not None:
            state = known.copy() if len(tokens) else known
        else:
            raise InvalidArgument(argument="grammar", detail="the slot has no matcher: name the grammar")
        if len(tokens):
            taken = state.take(tokens.tolist())
            if taken < len(tokens) and not state.is_slow:
                detail = f"its texts don't begin with the given tokens: token {taken} of {len(tokens)} doesn't fit"
                raise GrammarRefused(detail=detail)
        if state.is_slow:
            detail = f"{state.num_tokens} tokens took {state.spent_s:.2f} s: make the grammar less ambiguous"
            raise GrammarRefused(detail=detail)
        if state.stopped:
            raise GrammarRefused(detail="its text is complete: nothing can follow")
        self._prepared[slot] = state
        return state

    def _begin(self, number: int, slot: int) -> LLMatcher:
        matcher = None if self._grammars is None else self._grammars.start(number)
        if matcher is None:
            raise InvalidArgument(argument="grammar", detail=f"{number} is none that this engine has")
        if slot not in self._of and len(self._of.keys() | self._prepared.keys()) >= MAX_MATCHERS:
            raise EngineFailure(detail="the matchers of this engine are full: free token slots")
        return matcher

    def advance(self, taken: Sequence[tuple[int, int]], telling: Collection[int] = ()) -> list[Advanced]:
        """Take the sampled tokens, given with their slots; begin to compute the next masks.

        Args:
            taken: slots and tokens.
            telling: slots of which the forced tokens are told.
        """
        told, going = [], []
        for slot, token in taken:
            state = self._of[slot] = self._prepared.pop(slot)
            state.take([token])
            if state.stopped:
                told.append(Advanced(stopped=True))
                continue
            if state.is_slow:  # the next sample is refused
                told.append(Advanced(stopped=False))
                continue
            told.append(Advanced(stopped=False, forced=state.forced() if slot in telling else ()))
            going.append(state)
        self._fill(going)
        return told

    def _fill(self, states: list[_State]) -> None:
        if not states:
            return
        masks = _Masks([state.matcher for state in states], self._width, _threads())
        for row, state in enumerate(states):
            state.masks, state.row = masks, row

    def forget(self, slots: Iterable[int]) -> None:
        """Forget the matchers of slots."""
        if self._of:
            for slot in slots:
                self._of.pop(int(slot), None)


def _allowed(words: Words, matcher: LLMatcher, options: SampleOptions, grammars: Grammars | None) -> Words:
    """Return the tokens that grammar and options both allow.

    Raises:
        GrammarRefused: the matcher's step passed a limit.
        InvalidArgument: no token is left.
    """
    if matcher.is_error():
        raise GrammarRefused(detail=matcher.get_error()[:400])
    assert grammars is not None, "there is a matcher"
    permitted = options.permitted(grammars.vocab_size)
    if permitted is not None:
        bits = np.zeros(32 * len(words), np.bool_)
        bits[: len(permitted)] = permitted
        words = words & np.packbits(bits, bitorder="little").view(np.int32)
    if not words.any():
        raise InvalidArgument(argument="grammar", detail="none of the allowed tokens continues its text")
    return words


@lru_cache(maxsize=1)
def _threads() -> tuple[ThreadPoolExecutor, LLExecutor]:
    """Return the thread that waits for masks, and the threads that compute them."""
    count = min(_MAX_THREADS, max(1, (psutil.cpu_count() or 1) // 2))
    return ThreadPoolExecutor(1, thread_name_prefix="masks"), LLExecutor(count)
