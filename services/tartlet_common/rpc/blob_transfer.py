"""Blobs (sources, tokenizers) in chunks: one message holds 4 MiB, a blob may be larger.

The first chunk names digest and size, so that a blob that is too large is refused before the rest of it is read.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final

from tartlet_common.errors.registry import DeadlineExceeded, InvalidArgument, TartletError
from tartlet_protos import common_pb2

CHUNK_BYTES: Final = 1 << 20
CHUNK_TIMEOUT_S: Final = 30.0
"""How long the sender may take for one chunk: what it has sent occupies memory meanwhile."""
TOTAL_TIMEOUT_S: Final = 30.0
"""How long the sender may take for all of them, and `MIB_TIMEOUT_S` more for each MiB that it has announced."""
MIB_TIMEOUT_S: Final = 1.0


def chunks(data: bytes) -> Iterator[common_pb2.BlobChunk]:
    """A blob as chunks.

    Example:
        >>> [len(c.data) for c in chunks(bytes(CHUNK_BYTES + 1))]
        [1048576, 1]
    """
    digest = hashlib.sha256(data).hexdigest()
    yield common_pb2.BlobChunk(digest=digest, size=len(data), data=data[:CHUNK_BYTES])
    for at in range(CHUNK_BYTES, len(data), CHUNK_BYTES):
        yield common_pb2.BlobChunk(data=data[at : at + CHUNK_BYTES])


async def receive(
    incoming: AsyncIterator[common_pb2.BlobChunk], limit: int, too_large: Callable[[int, int], TartletError]
) -> tuple[str, bytes]:
    """A blob of at most `limit` bytes, and its digest. `too_large(size, limit)` is the error for a larger one.

    Raises:
        InvalidArgument: it isn't what its first chunk announced, or a chunk after that is empty.
        DeadlineExceeded: the sender pauses for longer than `CHUNK_TIMEOUT_S`, or takes too long for all of it.
    """
    first = await _next(incoming)
    if first is None or not first.digest:
        raise InvalidArgument(argument="digest", detail="the first chunk must name digest and size")
    if first.size > limit:
        raise too_large(first.size, limit)
    total_s = TOTAL_TIMEOUT_S + MIB_TIMEOUT_S * (first.size >> 20)
    try:
        async with asyncio.timeout(total_s):
            data, actual = await _rest(first, incoming)
    except TimeoutError as e:
        raise DeadlineExceeded(deadline_s=total_s) from e
    if len(data) != first.size:
        raise InvalidArgument(argument="size", detail=f"announced {first.size} bytes, sent {len(data)} or more")
    if actual != first.digest:
        raise InvalidArgument(argument="digest", detail=f"{first.digest[:64]!r} is not {actual}")
    return actual, bytes(data)


async def _rest(first: common_pb2.BlobChunk, incoming: AsyncIterator[common_pb2.BlobChunk]) -> tuple[bytearray, str]:
    """All data, or a chunk more than was announced; and its digest."""
    data, running = bytearray(first.data), hashlib.sha256(first.data)
    while len(data) <= first.size and (chunk := await _next(incoming)) is not None:
        if not chunk.data:
            raise InvalidArgument(argument="data", detail="only the first chunk may be empty")
        data += chunk.data
        running.update(chunk.data)  # a chunk at a time, so that others get their turns between
    return data, running.hexdigest()


async def _next(incoming: AsyncIterator[common_pb2.BlobChunk]) -> common_pb2.BlobChunk | None:
    try:
        async with asyncio.timeout(CHUNK_TIMEOUT_S):
            return await anext(incoming, None)
    except TimeoutError as e:
        raise DeadlineExceeded(deadline_s=CHUNK_TIMEOUT_S) from e
