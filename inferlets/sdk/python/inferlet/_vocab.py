"""Bytes of tokens, fetched in blocks and kept: generated text is put together here without a round trip a token."""

from __future__ import annotations

import asyncio

from inferlet._program import get_vocabs
from inferlet._types import Model

BLOCK = 512
SMALL_VOCABULARY = 4096


class Vocab:
    """The bytes of one model's tokens, as far as they were needed."""

    __slots__ = ("_block", "_loading", "_model", "known")

    def __init__(self, model: Model) -> None:
        self._model = model
        self._block = model.vocab_size if model.vocab_size <= SMALL_VOCABULARY else BLOCK
        self._loading: dict[int, asyncio.Future[list[bytes]]] = {}
        self.known: dict[int, bytes] = {}

    def prefetch(self) -> None:
        """Ask for a small vocabulary ahead of the first token."""
        if self._model.vocab_size <= SMALL_VOCABULARY:
            self._ask(0)

    def _ask(self, first: int) -> asyncio.Future[list[bytes]]:
        if first not in self._loading:
            count = min(self._block, self._model.vocab_size - first)
            self._loading[first] = get_vocabs(self._model, first=first, count=count)
        return self._loading[first]

    async def fetch(self, token: int) -> bytes:
        """The bytes of a token that is not `known` yet."""
        first = token - token % self._block
        # Several contexts may wait for one block: the one that is cancelled must not take it from the others.
        block = await asyncio.shield(self._ask(first))
        whole = len(block) > self._block  # a host may answer with all of it
        self.known.update(enumerate(block, 0 if whole else first))
        return self.known.setdefault(token, b"")  # a model's vocabulary may be padded beyond its tokenizer's


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
