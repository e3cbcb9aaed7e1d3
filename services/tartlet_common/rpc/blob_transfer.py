"""Sends and receives blobs (sources, tokenizers) in chunks: one message holds 4 MiB, a blob may be larger.

The first chunk names digest and size, so that the receiver refuses a blob that is too large before it reads the rest.
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
"""Seconds that the sender may take for one chunk: the chunks before it occupy memory meanwhile."""
TOTAL_TIMEOUT_S: Final = 30.0
"""Seconds that the sender may take for all chunks, plus `MIB_TIMEOUT_S` for each MiB that it has announced."""
MIB_TIMEOUT_S: Final = 1.0


def chunks(data: bytes) -> Iterator[common_pb2.BlobChunk]:
    """Split a blob into chunks.

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
    """Receive a blob of at most `limit` bytes; return its digest and its data.

    Args:
        incoming: the chunks.
        limit: bytes of the blob, at most.
        too_large: makes the error for a larger blob, from its size and the limit.

    Raises:
        InvalidArgument: the data doesn't match the first chunk's digest and size, or a later chunk is empty.
        DeadlineExceeded: one chunk took longer than `CHUNK_TIMEOUT_S`, or the whole blob took too long.
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
    """Return all data and its digest; stop at the first chunk beyond the announced size."""
    data, running = bytearray(first.data), hashlib.sha256(first.data)
    while len(data) <= first.size and (chunk := await _next(incoming)) is not None:
        if not chunk.data:
            raise InvalidArgument(argument="data", detail="only the first chunk may be empty")
        data += chunk.data
        running.update(chunk.data)  # one chunk at a time, so that other tasks run in between
    return data, running.hexdigest()


async def _next(incoming: AsyncIterator[common_pb2.BlobChunk]) -> common_pb2.BlobChunk | None:
    try:
        async with asyncio.timeout(CHUNK_TIMEOUT_S):
            return await anext(incoming, None)
    except TimeoutError as e:
        raise DeadlineExceeded(deadline_s=CHUNK_TIMEOUT_S) from e
