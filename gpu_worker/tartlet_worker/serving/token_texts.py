"""Adds the bytes of sampled tokens to a step's results, for the commands that asked for them.

The worker has the tokenizer and the tokens anyway. No engine knows of this, so its fast paths stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from tartlet_common.engine.step import BatchResult, Sample, Step, StepResult


def with_bytes(step: Step, result: StepResult, words: Sequence[bytes]) -> StepResult:
    """Return a step's result with the bytes of the tokens that commands asked for; `words` are those of each token."""
    for batch in step.batches:
        if isinstance(batch, Sample) and len(batch.with_bytes):
            told = [*map(_told, step.batches, result.results, [words] * len(step.batches))]
            return replace(result, results=tuple(told))
    return result


def _told(batch: object, answers: BatchResult, words: Sequence[bytes]) -> BatchResult:
    if not isinstance(batch, Sample) or not len(batch.with_bytes):
        return answers
    count = len(words)
    texts = [words[token] if 0 <= token < count else b"" for token in answers.token[batch.with_bytes].tolist()]
    indptr = np.array([0, *accumulate(map(len, texts))], np.int32)
    return replace(answers, text=np.frombuffer(b"".join(texts), np.uint8), text_indptr=indptr)
