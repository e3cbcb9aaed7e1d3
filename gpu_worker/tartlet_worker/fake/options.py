"""What the options of a `sample` do on the fake engine, in float64: docs/abi.md, written out token by token."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tartlet_common.engine.sample_options import BANNED, SampleOptions
from tartlet_common.errors.registry import InvalidArgument, TartletError
from tartlet_worker.fake.model import VOCAB_SIZE
from tartlet_worker.fake.state import FakeState
from tartlet_worker.history import Told

F64 = npt.NDArray[np.float64]


def following(
    state: FakeState, slot: int, options: SampleOptions
) -> tuple[npt.NDArray[np.bool_] | None, TartletError | None]:
    """Return the tokens [V] that a grammar allows, or why there are none."""
    if state.matchers is None:
        return None, InvalidArgument(argument="grammar", detail="this engine has no grammars")
    masks, errors = state.matchers.prepare({0: (slot, options)})
    if 0 in errors:
        return None, errors[0]
    return np.unpackbits(masks[0].view(np.uint8), bitorder="little", count=VOCAB_SIZE).view(np.bool_), None


def changed(
    state: FakeState, slot: int, logits: F64, options: SampleOptions, allowed: npt.NDArray[np.bool_] | None = None
) -> F64:
    """Return the logits [V] by which the token is chosen; a grammar allows some tokens alone."""
    out = logits.copy()
    by = options.penalties
    if by is not None:
        history = state.histories.of(slot, options)
        for token in {*history.prompt.tolist(), *history.counts}:
            times = history.counts.get(token, 0)
            value = out[token] / by.repetition if out[token] > 0 else out[token] * by.repetition
            out[token] = value - by.frequency * times - (by.presence if times else 0.0)
    for token, value in zip(options.bias_token.tolist(), options.bias.tolist(), strict=True):
        out[token] = -np.inf if value <= BANNED else out[token] + value
    permitted = options.permitted(len(out)) if allowed is None else allowed  # which takes them into account
    return out if permitted is None else np.where(permitted, out, -np.inf)


def tell(state: FakeState, slot: int, token: int, logp: F64, options: SampleOptions) -> Told:
    """Note the sampled token, and return the tokens asked for with their log-probabilities under `logp` [V]."""
    if options.penalties is not None:
        state.histories.add(slot, token)
    best = np.argsort(-logp, kind="stable")[: options.top]
    ids = np.concatenate([best, options.named]).astype(np.int32)
    return ids, logp[ids].astype(np.float32)
