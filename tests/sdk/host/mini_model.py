"""A tiny deterministic model whose output shows whether KV was handled right.

The state of a token is a hash of the token, its position and the states of all tokens that it sees. A missing page, a
wrong offset or a stale slot therefore changes every later token; `reference_states` needs no pages at all.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

VOCAB = 260
BOS, EOS = 256, 257
ADAPTER: dict[str, Any] = {"name": "loud", "number": 0x9F3B0001, "rank": 4, "digest": "9f3b0001" * 8}
"""The model's one adapter: it changes the state of each token that it computes."""


def state_of(token: int, position: int, seen: Iterable[tuple[int, int]]) -> int:
    """The state of a token that sees (position, state) pairs, in any order."""
    digest = hashlib.blake2b(struct.pack("<II", token, position), digest_size=8)
    for at, state in sorted(seen):
        digest.update(struct.pack("<IQ", at, state))
    return int.from_bytes(digest.digest(), "little")


def reference_states(tokens: Sequence[int], adapter: int = 0) -> list[int]:
    """States of a plain sequence of tokens, under an adapter or none."""
    states: list[int] = []
    for i, token in enumerate(tokens):
        states.append(state_of(token, i, enumerate(states)) ^ adapter)
    return states


def logits(state: int, position: int, script: dict[int, int]) -> np.ndarray:
    """Next-token logits of a state at `position`; `script` forces the token that follows a position."""
    out = np.random.default_rng(state).normal(size=VOCAB)
    out[32:127] += 3.0
    out[BOS:] -= 100.0
    if position in script:
        out[script[position]] = 1000.0
    return out


def probabilities(state: int, position: int, script: dict[int, int]) -> np.ndarray:
    """The next-token distribution."""
    z = logits(state, position, script)
    e = np.exp(z - z.max())
    out: np.ndarray = e / e.sum()
    return out


def choose(probs: np.ndarray, params: tuple[float, int, float, float, int, int], position: int) -> int:
    """Sample with (temperature, top_k, top_p, min_p, seed, draw); noise keyed by (seed, position, draw)."""
    temperature, top_k, top_p, min_p, seed, draw = params
    if temperature == 0:
        return int(probs.argmax())
    scaled = np.log(np.maximum(probs, 1e-30)) / temperature
    weights = np.exp(scaled - scaled.max())
    weights /= weights.sum()
    order = np.argsort(-weights, kind="stable")
    kept = order[: top_k or VOCAB]
    kept = kept[: int(np.searchsorted(np.cumsum(weights[kept]), top_p)) + 1] if top_p < 1 else kept
    kept = kept[weights[kept] >= min_p * weights[order[0]]]
    u = np.random.default_rng([seed, position, draw]).random()
    cumulated = np.cumsum(weights[kept])
    return int(kept[int(np.searchsorted(cumulated, u * cumulated[-1]))])


def reference_generate(  # the loop that a Context must agree with
    prompt: Sequence[int],
    n: int,
    params: tuple[float, int, float, float, int, int] = (0.0, 0, 1.0, 0.0, 0, 0),
    script: dict[int, int] | None = None,
    adapter: int = 0,
) -> list[int]:
    """The `n` tokens that follow `prompt`."""
    tokens, states = list(prompt), reference_states(prompt, adapter)
    for _ in range(n):
        at = len(tokens) - 1
        token = choose(probabilities(states[-1], at, script or {}), params, at)
        states.append(state_of(token, len(tokens), enumerate(states)) ^ adapter)
        tokens.append(token)
    return tokens[len(prompt) :]


def logprob(probs: np.ndarray, token: int) -> float:
    """Log-probability of a token."""
    return math.log(max(float(probs[token]), 1e-30))
