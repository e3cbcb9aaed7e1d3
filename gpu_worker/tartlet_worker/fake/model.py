"""The fake model: a next-token distribution that is a hash of what attention sees, and a byte-level tokenizer.

A column of attention is a 64-bit number made of a token and its position. A query sees the sum of its visible columns
(like attention, the sum does not depend on the order of pages), and the distribution is a hash of this sum. So one
column too many, one too few or one at a wrong position gives other text, as with a real model, and two runs with the
same columns give the same bits.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]

SPECIALS = ("<|begin|>", "<|end|>", "<|user|>", "<|assistant|>")
BOS, EOS = 256, 257
VOCAB_SIZE = 256 + len(SPECIALS)
CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}<|assistant|>{% else %}<|user|>{% endif %}"
    "{{ m['content'] }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

_K1, _K2, _K3 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)
_SPREAD = 3.0  # width of the logits: wide enough for a clear first choice, narrow enough for samplers to differ
_PRINTABLE = range(32, 127)


def mix(x: U64) -> U64:
    """SplitMix64's finaliser, element by element: uint64 to uint64."""
    x = (x ^ (x >> _S30)) * _K2
    x = (x ^ (x >> _S27)) * _K3
    return x ^ (x >> _S31)


def column(value: U64, position: npt.NDArray[np.int32]) -> U64:
    """Return what a token's embedding `value` at `position` adds to the sum of each query that sees it."""
    return mix(value + (position.astype(np.uint64) + np.uint64(1)) * _K1)


def sums_before(columns: U64, column_positions: npt.NDArray[np.int32], positions: npt.NDArray[np.int32]) -> U64:
    """Return [Q]: for each query the sum of the columns [C] at its position and before, modulo 2**64.

    The time grows with C + Q, not with C * Q, so a prompt of 100,000 tokens takes no longer than its parts.

    Example:
        >>> columns, at = np.array([5, 7, 9], np.uint64), np.array([2, 0, 1], np.int32)
        >>> sums_before(columns, at, np.array([0, 1, 5], np.int32)).tolist()
        [7, 16, 21]
    """
    order = np.argsort(column_positions, kind="stable")
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(columns[order], dtype=np.uint64)])
    return np.asarray(sums[np.searchsorted(column_positions[order], positions, side="right")])


def adapted(value: U64, adapter: int) -> U64:
    """Return embeddings as an adapter changes them; adapter 0 changes nothing."""
    return mix(value + np.array([adapter], np.uint64) * _K3) if adapter else value


def token_value(token: npt.NDArray[np.int32], seed: int) -> U64:
    """Return the embeddings of token ids."""
    return mix(token.astype(np.uint64) * _K1 + np.uint64(seed) + _K3)


@lru_cache(maxsize=1)
def _bias() -> npt.NDArray[np.float64]:
    """Return [V] logits that make printable ASCII likely and other tokens not, so that output reads as text."""
    bias = np.full(VOCAB_SIZE, -40.0)
    bias[list(_PRINTABLE)] = 0.0
    bias[10] = -1.0
    bias[EOS] = -2.0
    return bias


def logits(hidden: U64) -> npt.NDArray[np.float64]:
    """Return logits [E, V] of the sums [E] that queries saw."""
    tokens = np.arange(VOCAB_SIZE, dtype=np.uint64) * _K3
    bits = mix(hidden[:, None] ^ tokens[None, :])
    unit = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return _bias() + _SPREAD * unit


def log_softmax(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the log-softmax along the last axis."""
    x = x - x.max(axis=-1, keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(axis=-1, keepdims=True)))


@dataclass(frozen=True, slots=True)
class SampleRule:
    """How one token is drawn; the fields are those of a `Sample` command."""

    temperature: float
    top_k: int  # 0 is off
    top_p: float  # 1 is off
    min_p: float  # 0 is off


def draw(logp: npt.NDArray[np.float64], rule: SampleRule, u: float) -> int:
    """Draw a token of one distribution [V] by inverse CDF at `u` in [0, 1); temperature 0 takes the best token."""
    if rule.temperature <= 0:
        return int(logp.argmax())
    order = np.argsort(-logp, kind="stable")
    scaled = log_softmax(logp[order] / rule.temperature)
    probs = np.exp(scaled)
    keep = np.ones(len(order), np.bool_)
    if rule.top_k > 0:
        keep[rule.top_k :] = False
    if rule.top_p < 1:
        keep &= np.cumsum(probs) - probs < rule.top_p
    if rule.min_p > 0:
        keep &= probs >= rule.min_p * probs[0]
    keep &= probs > 0
    keep[0] = True
    cdf = np.cumsum(np.where(keep, probs, 0.0))
    at = int(np.searchsorted(cdf, u * cdf[-1], side="right"))
    return int(order[min(at, int(np.flatnonzero(keep)[-1]))])


def _byte_characters() -> list[str]:
    """The printable stand-ins of the byte-level scheme, by byte: printable bytes are themselves, the rest U+0100 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    out, extra = [], 0
    for byte in range(256):
        if byte in plain:
            out.append(chr(byte))
        else:
            out.append(chr(256 + extra))
            extra += 1
    return out


@lru_cache(maxsize=1)
def tokenizer_json() -> bytes:
    """Return a tokenizer.json with one token for each byte (its id is the byte) and four special tokens."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    document: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": 256 + i, "content": text, **special} for i, text in enumerate(SPECIALS)],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {char: byte for byte, char in enumerate(_byte_characters())},
            "merges": [],
        },
    }
    return json.dumps(document, separators=(",", ":")).encode()
