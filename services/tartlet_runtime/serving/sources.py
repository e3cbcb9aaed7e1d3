"""Where a program's bytes come from: the launch, an earlier one or an upload (by digest), or control's catalogue."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import NamedTuple

import grpc
import grpc.aio

from tartlet_common.errors.registry import (
    InvalidSource,
    Overloaded,
    SourceTooLarge,
    TartletError,
    Unavailable,
    UnknownInferlet,
)
from tartlet_common.rpc.blob_transfer import receive
from tartlet_common.rpc.endpoints import Dialer
from tartlet_common.rpc.error_proto import error_from_proto
from tartlet_protos import common_pb2, control_pb2, control_pb2_grpc, programs_pb2
from tartlet_runtime.budget.ledger import Ledger, Use

KEPT_BYTES = 64 << 20
"""All sources that are kept, or four times the largest that is taken; those unused for longest go."""
UPLOADS_AT_ONCE = 4
"""Uploads whose bytes are read; others wait, and gRPC holds back what they send."""
MAX_UPLOADS = 256
FETCH_TIMEOUT_S = 30.0
_TIMEOUT_S = 5.0


class Found(NamedTuple):
    """A launch whose program was found."""

    asked: programs_pb2.LaunchSpec  # with its inferlet's defaults
    source: common_pb2.Source
    capabilities: common_pb2.Capabilities | None  # the most that its inferlet's launches get; None: it has no inferlet


class Sources:
    """Sources by digest, the most recent ones kept in memory."""

    def __init__(self, control: Dialer, source_bytes: int, ledger: Ledger) -> None:
        """`control`: the way to it; `source_bytes` is the largest source that is taken, into memory of `ledger`."""
        self._source_bytes = source_bytes
        self._ledger = ledger
        self._limit = max(source_bytes, min(max(KEPT_BYTES, 4 * source_bytes), ledger.bound_bytes // 16))
        self._uploads = 0
        self._uploading = asyncio.Semaphore(UPLOADS_AT_ONCE)
        self._control = control
        self._kept: OrderedDict[str, common_pb2.Source] = OrderedDict()
        self._bytes = 0

    @property
    def kept_bytes(self) -> int:
        """Of all sources that are kept."""
        return self._bytes

    async def find(self, asked: programs_pb2.LaunchSpec) -> Found:
        """Return the launch with its inferlet's defaults, its source, and what the inferlet may reach.

        Raises:
            UnknownInferlet: the catalogue has none of that name.
            InvalidSource: nobody knows the digest.
            Unavailable: control can't be reached.
        """
        if not asked.inferlet:
            return Found(asked, await self.resolve(asked.source), None)
        request = control_pb2.GetRequest(tenant=asked.tenant, name=asked.inferlet)
        entry = (await self._get(request)).entry
        if not entry.name:
            raise UnknownInferlet(inferlet=asked.inferlet)
        full = programs_pb2.LaunchSpec(
            limits=entry.limits, model=entry.model, pool=entry.pool, durability=entry.durability
        )
        full.MergeFrom(asked)  # what the launch says wins over the catalogue
        return Found(full, await self.resolve(entry.source), entry.capabilities)

    async def upload(self, chunks: AsyncIterator[common_pb2.BlobChunk]) -> str:
        """Take a source in chunks and keep it for launches by its digest. Returns the digest.

        Raises:
            SourceTooLarge: its first chunk announces too much; the rest isn't read.
            Overloaded: too many uploads wait already.
            InvalidArgument, DeadlineExceeded: see `blob_transfer.receive`.
        """
        if self._uploads >= MAX_UPLOADS:
            raise Overloaded(what="the queue of uploads", limit=MAX_UPLOADS)
        self._uploads += 1
        try:
            async with self._uploading:
                digest, data = await receive(chunks, self._source_bytes, _too_large)
        finally:
            self._uploads -= 1
        self._keep(digest, common_pb2.Source(data=data, digest=digest))
        return digest

    async def resolve(self, source: common_pb2.Source) -> common_pb2.Source:
        """Return the source with its data.

        Raises:
            InvalidSource: nobody knows the digest.
            Unavailable: control can't be reached.
        """
        if source.data or not source.digest:
            self.keep(source)
            return source
        found = self._kept.get(source.digest)
        if found is not None:
            self._kept.move_to_end(source.digest)
        else:
            found = await self._fetch(source)
            self.keep(found)
        if source.language in (common_pb2.Source.LANGUAGE_UNSPECIFIED, found.language):
            return found
        return common_pb2.Source(
            language=source.language,
            filename=source.filename or found.filename,
            data=found.data,
            digest=source.digest,
        )

    async def _fetch(self, source: common_pb2.Source) -> common_pb2.Source:
        """From control: an entry of the catalogue that fits a message, else the blob."""
        if source.language == common_pb2.Source.LANGUAGE_UNSPECIFIED:
            try:
                source = (await self._get(control_pb2.GetRequest(digest=source.digest))).entry.source
            except UnknownInferlet as e:
                raise InvalidSource(detail=f"nobody knows a program with digest {source.digest[:64]}") from e
            if source.data:
                return source
        data = bytearray()
        try:
            async for chunk in control_pb2_grpc.ControlStub(self._control.channel).FetchBlob(
                control_pb2.BlobRequest(digest=source.digest), timeout=FETCH_TIMEOUT_S
            ):
                data += chunk.data
                if len(data) > self._source_bytes:
                    raise SourceTooLarge(size=max(chunk.size, len(data)), limit=self._source_bytes)
        except grpc.RpcError as e:
            if e.code() in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.NOT_FOUND):
                raise InvalidSource(detail=f"nobody knows a program with digest {source.digest[:64]}") from e
            raise Unavailable(what="control", detail=repr(e)) from e
        return common_pb2.Source(
            language=source.language, filename=source.filename, data=bytes(data), digest=source.digest
        )

    def keep(self, source: common_pb2.Source) -> None:
        """Remember a source for launches that name its digest only."""
        digest = hashlib.sha256(source.data).hexdigest()
        if digest not in self._kept:
            kept = common_pb2.Source()
            kept.CopyFrom(source)
            kept.digest = digest
            self._keep(digest, kept)

    def _keep(self, digest: str, source: common_pb2.Source) -> None:
        if digest in self._kept:
            self._kept.move_to_end(digest)
            return
        self._kept[digest] = source
        self._count(len(source.data))
        while self._bytes > self._limit:
            self._count(-len(self._kept.popitem(last=False)[1].data))

    def _count(self, by: int) -> None:
        self._bytes += by
        self._ledger.add(Use.SOURCES, by)

    async def _get(self, request: control_pb2.GetRequest) -> control_pb2.GetReply:
        try:
            reply: control_pb2.GetReply = await control_pb2_grpc.CatalogueStub(self._control.channel).Get(
                request, timeout=_TIMEOUT_S
            )
        except grpc.RpcError as e:
            raise Unavailable(what="control's catalogue", detail=repr(e)) from e
        error = error_from_proto(reply.error)
        if error is not None:
            raise error
        return reply


def _too_large(size: int, limit: int) -> TartletError:
    return SourceTooLarge(size=size, limit=limit)
