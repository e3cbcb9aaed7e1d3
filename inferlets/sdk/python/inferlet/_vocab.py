"""Bytes of tokens, fetched in blocks and kept: generated text is put together here without a round trip a token."""

from __future__ import annotations

import asyncio
from array import array
from itertools import accumulate

from inferlet import _abi
from inferlet._channel import channel, from_u32
from inferlet._types import Model

BLOCK = 512
SMALL_VOCABULARY = 4096


class Words:
    """A run of tokens as it came: a program needs few of them."""

    __slots__ = ("_bytes", "_starts", "size")

    def __init__(self, payload: bytes) -> None:
        self._bytes = payload
        self.size = int.from_bytes(payload[:4], "little")
        words = 4 + 4 * self.size
        self._starts = array("I", accumulate(from_u32(payload[4:words]), initial=words))

    def word(self, i: int) -> bytes:
        """The bytes of token `i` of the run; none of one that it hasn't: a model's vocabulary may be padded."""
        return self._bytes[self._starts[i] : self._starts[i + 1]] if i < self.size else b""


def _decode(_a: int, _b: int, _c: int, payload: bytes) -> Words:
    return Words(payload)


class Vocab:
    """The bytes of one model's tokens, as far as they were needed."""

    __slots__ = ("_block", "_loading", "_model", "known")

    def __init__(self, model: Model) -> None:
        self._model = model
        self._block = model.vocab_size if model.vocab_size <= SMALL_VOCABULARY else BLOCK
        self._loading: dict[int, asyncio.Future[Words]] = {}
        self.known: dict[int, bytes] = {}

    def prefetch(self) -> None:
        """Ask for a small vocabulary ahead of the first token."""
        if self._model.vocab_size <= SMALL_VOCABULARY:
            self._ask(0)

    def _ask(self, first: int) -> asyncio.Future[Words]:
        if first not in self._loading:
            count = min(self._block, self._model.vocab_size - first)
            self._loading[first] = channel.call(_decode, _abi.OP_GET_VOCABS, 0, self._model.index, first, count)
        return self._loading[first]

    async def fetch(self, token: int) -> bytes:
        """The bytes of a token that is not `known` yet."""
        first = token - token % self._block
        # Several contexts may wait for one block: the one that is cancelled must not take it from the others.
        block = await asyncio.shield(self._ask(first))
        whole = block.size > self._block  # a host may answer with all of it
        word = self.known[token] = block.word(token if whole else token - first)
        return word


_vocabs: dict[str, Vocab] = {}


def vocab_of(model: Model) -> Vocab:
    """The program's table for this model."""
    vocab = _vocabs.get(model.name)
    if vocab is None:
        vocab = _vocabs[model.name] = Vocab(model)
    return vocab


def reset() -> None:
    """Forget everything (another program starts in this process)."""
    _vocabs.clear()
