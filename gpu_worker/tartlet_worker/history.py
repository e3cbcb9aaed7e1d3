"""Histories: which tokens stand in the prompt and the output of a token slot, for the penalties of its samples.

A history is a function of tokens: a `sample` that sets it names them, and each penalised `sample` adds its own token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tartlet_common.engine import sample_options
from tartlet_common.engine.sample_options import Penalties, SampleOptions
from tartlet_common.engine.step import Sample
from tartlet_common.errors.registry import EngineFailure

MAX_TOKENS = 1 << 24
"""Distinct tokens that all histories of an engine may hold when a further one is set."""

Told = tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]
"""Tokens [N] and their log-probabilities [N], as a command asks for them."""
_NONE = np.zeros(0, np.int32)
Values = npt.NDArray[np.float64]


def options_of(batch: Sample) -> dict[int, SampleOptions]:
    """Return the options of the commands that bring some, by the command's index."""
    data, bounds = batch.options.tobytes(), batch.options_indptr.tolist()
    spans = zip(batch.with_options.tolist(), pairwise(bounds), strict=True)
    return {b: sample_options.read_again(data[start:end]) for b, (start, end) in spans}


def histories_full(_command: int) -> EngineFailure:
    """Make the error of a command whose history the engine has no room for."""
    return EngineFailure(detail="the token histories of this engine are full: free token slots")


def asked_columns(
    asking: Iterable[int], answers: Mapping[int, Told]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Return the columns of `BatchResult.dist_*`: an entry for each command of `asking`, empty without an answer."""
    told = [answers.get(b, (_NONE, np.zeros(0, np.float32))) for b in asking]
    indptr = np.zeros(len(told) + 1, np.int32)
    np.cumsum([len(ids) for ids, _ in told], out=indptr[1:])
    return indptr, np.concatenate([ids for ids, _ in told]), np.concatenate([values for _, values in told])


def with_forced(told: Told, forced: Sequence[int]) -> Told:
    """Return an answer with the tokens that a grammar forces behind it; infinity marks them."""
    ids, values = told
    marks = np.full(len(forced), np.inf, np.float32)
    return np.concatenate([ids, np.array(forced, np.int32)]), np.concatenate([values, marks])


class History:
    """The tokens of one slot: distinct ones of its prompt, and how often each stands in its output."""

    __slots__ = ("counts", "prompt")

    def __init__(self, prompt: npt.NDArray[np.int32] = _NONE, output: npt.NDArray[np.int32] = _NONE) -> None:
        self.prompt = np.unique(prompt)
        self.counts = Counter(output.tolist())

    def __len__(self) -> int:
        return len(self.prompt) + len(self.counts)

    def occurrences(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the distinct tokens [N] of prompt and output, and how often each stands in the output."""
        output = np.fromiter(self.counts.keys(), np.int64, len(self.counts))
        times = np.fromiter(self.counts.values(), np.int64, len(self.counts))
        only_prompt = np.setdiff1d(self.prompt, output)
        return np.concatenate([output, only_prompt]), np.concatenate([times, np.zeros(len(only_prompt), np.int64)])


def penalised(logits: Values, times: npt.NDArray[np.int64], penalties: Penalties) -> Values:
    """Return the logits [N] float64 of tokens that stand `times` [N] times in the output, with penalties applied."""
    by = penalties.repetition
    changed = np.where(logits > 0, logits / by, logits * by)
    return np.asarray(changed - penalties.frequency * times - penalties.presence * (times > 0))


class Histories:
    """The histories of an engine's token slots. A slot without one has an empty history."""

    def __init__(self) -> None:
        self._of: dict[int, History] = {}
        self._size = 0

    def room_for(self, options: SampleOptions) -> bool:
        """Tell whether the history that the options bring, if any, may be set."""
        return options.history is None or self._size + sum(map(len, options.history)) <= MAX_TOKENS

    def of(self, slot: int, options: SampleOptions) -> History:
        """Return the history of a slot, which is first set to that of the options if they bring one."""
        found = self._of.get(slot)
        if options.history is not None or found is None:
            self._size -= len(found or ())
            found = self._of[slot] = History(*options.history or ())
            self._size += len(found)
        return found

    def add(self, slot: int, token: int) -> None:
        """Add a sampled token to the output of a slot's history."""
        counts = self._of[slot].counts
        self._size += token not in counts
        counts[token] += 1

    def forget(self, slots: Iterable[int]) -> None:
        """Forget the histories of slots."""
        if self._of:
            for slot in slots:
                self._size -= len(self._of.pop(int(slot), ()))
