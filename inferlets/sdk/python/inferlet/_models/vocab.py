"""The bytes of tokens, fetched in blocks and kept, so that generated text needs no round trip for each token."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import accumulate, pairwise

from inferlet._generated import packers
from inferlet._values.types import Model
from inferlet._wire.channel import channel

BLOCK = 1024
SMALL_VOCABULARY = 4096


class Words:
    """The bytes of a range of tokens, unpacked when a token is needed, because a program needs few of them."""

    __slots__ = ("_bytes", "_lengths", "_start", "size")

    def __init__(self, payload: bytes) -> None:
        self._bytes = payload
        self.size = int.from_bytes(payload[:4], "little")
        self._start = 4 + 4 * self.size
        self._lengths = memoryview(payload)[4 : self._start].cast("I")

    def word(self, i: int) -> bytes:
        """Return the bytes of token `i` of the range; b"" past its end, because a vocabulary may be padded."""
        if i >= self.size:
            return b""
        start = self._start + sum(self._lengths[:i])
        return self._bytes[start : start + self._lengths[i]]

    def all(self) -> list[bytes]:
        """Return the bytes of each token."""
        starts = accumulate(self._lengths, initial=self._start)
        return [self._bytes[start:end] for start, end in pairwise(starts)]


class Vocab:
    """The bytes of one model's tokens, as far as they are known."""

    __slots__ = ("_block", "_end", "_loading", "_model", "known")

    def __init__(self, model: Model) -> None:
        self._model = model
        self._block = model.vocab_size if model.vocab_size <= SMALL_VOCABULARY else BLOCK
        self._end = model.vocab_size  # tokens from here on have no bytes
        self._loading: dict[int, asyncio.Future[Words]] = {}
        self.known: dict[int, bytes] = {}

    @property
    def is_large(self) -> bool:
        """Whether the vocabulary comes in many blocks, so that each sample had better tell its token's bytes."""
        return self._model.vocab_size > SMALL_VOCABULARY

    def prefetch(self) -> None:
        """Ask for the first block ahead of need: a whole small vocabulary, or the most frequent tokens."""
        self._ask(0)

    def _ask(self, first: int) -> asyncio.Future[Words]:
        if first not in self._loading:
            count = min(self._block, self._model.vocab_size - first)
            decode = partial(self._decode, first, count)
            self._loading[first] = channel.call(decode, *packers.get_vocabs(self._model.index, first, count))
        return self._loading[first]

    def _decode(self, first: int, count: int, _a: int, _b: int, _c: int, payload: bytes) -> Words:
        words = Words(payload)
        if words.size < count:
            self._end = min(self._end, first + words.size)
        return words

    async def fetch(self, token: int) -> bytes:
        """Fetch the bytes of a token that is not `known` yet."""
        word = b""
        if token < self._end:
            first = token - token % self._block
            # Several contexts may wait for one block. If one of them is cancelled, the others still get the block.
            block = await asyncio.shield(self._ask(first))
            whole = block.size > self._block  # a host may answer with the whole vocabulary
            word = block.word(token if whole else token - first)
        self.known[token] = word
        return word


_vocabs: dict[str, Vocab] = {}


def vocab_of(model: Model) -> Vocab:
    """Return the program's table of a model."""
    vocab = _vocabs.get(model.name)
    if vocab is None:
        vocab = _vocabs[model.name] = Vocab(model)
    return vocab


def reset() -> None:
    """Forget everything, for another program in this process."""
    _vocabs.clear()
