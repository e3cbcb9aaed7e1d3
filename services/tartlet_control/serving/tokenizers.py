"""Tokenizers of engines, in memory: each tenant has a share, and what a present engine names stays."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Callable, Collection
from typing import Final, TypeAlias

from tartlet_common.errors.registry import FrameTooLarge, Overloaded, TartletError
from tartlet_common.rpc.blob_transfer import receive
from tartlet_control.tables.models import OWNERS_ENGINES
from tartlet_protos import common_pb2

TOKENIZER_BYTES: Final = 64 << 20
"""Largest tokenizer."""
OWNERS_BYTES: Final = 128 << 20
"""Limit of the tokenizers of one tenant's workers."""
STORE_BYTES: Final = 512 << 20
"""Limit of all tokenizers together."""
_READ_AT_ONCE: Final = 4

Owner: TypeAlias = "str | None"
"""The tenant whose worker brought a tokenizer; None: a worker that dials control's Unix socket."""


class Tokenizers:
    """Keeps tokenizers by owner and sha-256. One that two owners bring lies in memory once, and counts for both.

    When a share is used up, the owner's tokenizers that no engine names are dropped, those that were brought longest
    ago first. When all memory is used up, the owner with the most such bytes gives way.
    """

    def __init__(
        self, named: Callable[[], Collection[str]], *, owners_bytes: int = OWNERS_BYTES, store_bytes: int = STORE_BYTES
    ) -> None:
        """`named` returns the digests that present engines name."""
        self._named = named
        self._owners_bytes = owners_bytes
        self._store_bytes = store_bytes
        self._data: dict[str, bytes] = {}
        self._held: defaultdict[Owner, OrderedDict[str, None]] = defaultdict(OrderedDict)
        self._reading = asyncio.Semaphore(_READ_AT_ONCE)
        self._turns: dict[Owner, asyncio.Lock] = {}
        self._waiting: defaultdict[Owner, int] = defaultdict(int)

    def get(self, digest: str) -> bytes | None:
        """Return a tokenizer, None if it isn't here."""
        return self._data.get(digest)

    def has(self, owner: Owner, digest: str) -> bool:
        """Whether the owner's workers brought the tokenizer. What came by the Unix socket counts for everyone."""
        return any(digest in self._held[each] for each in (owner, None) if each in self._held)

    async def receive(self, owner: Owner, incoming: AsyncIterator[common_pb2.BlobChunk]) -> None:
        """Keep a tokenizer that comes in chunks, the first of which names digest and size. One owner's come in turn.

        Raises:
            InvalidArgument, DeadlineExceeded: as `blob_transfer.receive`.
            FrameTooLarge: the tokenizer passes TOKENIZER_BYTES.
            Overloaded: too many wait, or engines name all that fills the owner's share or the memory.
        """
        if self._waiting[owner] >= OWNERS_ENGINES:
            raise Overloaded(what="tokenizers of one tenant that wait to be read", limit=OWNERS_ENGINES)
        self._waiting[owner] += 1
        try:
            async with self._turns.setdefault(owner, asyncio.Lock()), self._reading:
                digest, data = await receive(incoming, TOKENIZER_BYTES, _too_large)
                self.keep(owner, digest, data)
        finally:
            self._waiting[owner] -= 1
            if not self._waiting[owner]:
                del self._waiting[owner], self._turns[owner]

    def keep(self, owner: Owner, digest: str, data: bytes) -> None:
        """Keep a tokenizer whose digest was computed while it came.

        Raises:
            Overloaded: engines name all that fills the owner's share or the memory.
        """
        held = self._held[owner]
        if digest in held:
            held.move_to_end(digest)
            return
        named = self._named()
        while owner is not None and self._size(held) + len(data) > self._owners_bytes:
            self._drop(owner, named, "bytes of one tenant's tokenizers", self._owners_bytes)
        while digest not in self._data and self._size(self._data) + len(data) > self._store_bytes:
            spare = {each: self._size(held.keys() - named) for each, held in self._held.items()}
            self._drop(max(spare, key=lambda each: spare[each]), named, "bytes of tokenizers", self._store_bytes)
        self._data[digest] = data
        held[digest] = None

    def _size(self, digests: Collection[str]) -> int:
        return sum(len(self._data[digest]) for digest in digests)

    def _drop(self, owner: Owner, named: Collection[str], what: str, limit: int) -> None:
        """Drop one of the owner's tokenizers."""
        oldest = next((digest for digest in self._held[owner] if digest not in named), None)
        if oldest is None:
            raise Overloaded(what=what, limit=limit)
        del self._held[owner][oldest]
        if not any(oldest in held for held in self._held.values()):
            del self._data[oldest]


def _too_large(size: int, limit: int) -> TartletError:
    return FrameTooLarge(size=size, what="bytes in a tokenizer", limit=limit)
