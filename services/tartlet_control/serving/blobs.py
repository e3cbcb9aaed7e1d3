"""Tokenizers and sources by digest, in memory, bounded."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Final

from tartlet_common.errors.registry import FrameTooLarge, InvalidArgument, TartletError
from tartlet_common.rpc.blob_transfer import receive
from tartlet_protos import common_pb2

BLOB_BYTES: Final = 64 << 20
"""Largest blob."""
STORE_BYTES: Final = 512 << 20
"""Limit of all blobs together. Beyond it, blobs that were unused for longest are dropped."""


class BlobStore:
    """Keeps byte strings by their sha-256."""

    def __init__(self, limit: int = STORE_BYTES) -> None:
        self._limit = limit
        self._blobs: OrderedDict[str, bytes] = OrderedDict()
        self._size = 0

    def get(self, digest: str) -> bytes | None:
        """Return a blob, None if it isn't here."""
        data = self._blobs.get(digest)
        if data is not None:
            self._blobs.move_to_end(digest)
        return data

    def put(self, digest: str, data: bytes) -> None:
        """Keep a blob.

        Raises:
            InvalidArgument: the digest isn't that of the bytes.
            FrameTooLarge: it passes BLOB_BYTES.
        """
        if len(data) > BLOB_BYTES:
            raise _too_large(len(data), BLOB_BYTES)
        actual = hashlib.sha256(data).hexdigest()
        if actual != digest:
            raise InvalidArgument(argument="digest", detail=f"{digest[:64]!r} is not {actual}")
        self.keep(digest, data)

    def keep(self, digest: str, data: bytes) -> None:
        """Keep a blob whose digest was computed while it came: for a large blob that takes longer than a token."""
        if digest in self._blobs:
            return
        self._blobs[digest] = data
        self._size += len(data)
        while self._size > self._limit and len(self._blobs) > 1:
            _, dropped = self._blobs.popitem(last=False)
            self._size -= len(dropped)

    async def receive(self, chunks: AsyncIterator[common_pb2.BlobChunk]) -> str:
        """Keep a blob that comes in chunks, the first of which names digest and size. Returns the digest.

        Raises:
            InvalidArgument, FrameTooLarge: as `put`. Bytes that weren't announced are an InvalidArgument too.
            DeadlineExceeded: the sender pauses.
        """
        digest, data = await receive(chunks, BLOB_BYTES, _too_large)
        self.keep(digest, data)
        return digest


def _too_large(size: int, limit: int) -> TartletError:
    return FrameTooLarge(size=size, what="bytes in a source", limit=limit)
