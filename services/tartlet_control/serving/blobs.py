"""Uploads by digest, in memory, bounded."""

from __future__ import annotations

from collections import OrderedDict


class BlobStore:
    """Keeps byte strings by their sha-256."""

    def __init__(self, limit: int) -> None:
        """`limit`: bytes of all blobs together. Beyond it, blobs that were unused for longest are dropped."""
        self._limit = limit
        self._blobs: OrderedDict[str, bytes] = OrderedDict()
        self._size = 0

    def get(self, digest: str) -> bytes | None:
        """Return a blob, None if it isn't here."""
        data = self._blobs.get(digest)
        if data is not None:
            self._blobs.move_to_end(digest)
        return data

    def keep(self, digest: str, data: bytes) -> None:
        """Keep a blob whose digest was computed while it came: for a large blob that takes longer than a token."""
        if digest in self._blobs:
            return
        self._blobs[digest] = data
        self._size += len(data)
        while self._size > self._limit and len(self._blobs) > 1:
            _, dropped = self._blobs.popitem(last=False)
            self._size -= len(dropped)
