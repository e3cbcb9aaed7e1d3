"""gRPC service Catalogue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc.aio

from tartlet_common.blob_transfer import receive
from tartlet_common.errors import InvalidSource, SourceTooLarge, TartletError
from tartlet_common.wire import error_to_proto
from tartlet_control.blobs import BlobStore
from tartlet_control.catalogue import SOURCE_BYTES, Catalogue, without_data
from tartlet_protos import common_pb2, control_pb2, control_pb2_grpc

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_MESSAGE_BYTES = 3 << 20
UPLOADS_BYTES = 128 << 20
"""Uploads that wait to be put; the oldest go first."""
_UPLOADS_AT_ONCE = 4


class CatalogueService(control_pb2_grpc.CatalogueServicer):
    """Entries in, entries out; each request's items are answered one by one."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._uploads = BlobStore(UPLOADS_BYTES)
        self._uploading = asyncio.Semaphore(_UPLOADS_AT_ONCE)

    async def Upload(  # noqa: N802
        self,
        request_iterator: AsyncIterator[common_pb2.BlobChunk],
        context: Context,
    ) -> control_pb2.UploadReply:
        """Keep a large source until it is put."""
        try:
            async with self._uploading:
                digest, data = await receive(request_iterator, SOURCE_BYTES, _too_large)
            self._uploads.put(digest, data)
        except TartletError as e:
            return control_pb2.UploadReply(error=error_to_proto(e))
        return control_pb2.UploadReply(digest=digest)

    async def Put(self, request: control_pb2.PutRequest, context: Context) -> control_pb2.PutReply:  # noqa: N802
        """Add or replace entries."""
        reply = control_pb2.PutReply()
        for entry in request.entries:
            digest, error = "", None
            try:
                digest = self._catalogue.put(self._with_data(entry))
            except TartletError as e:
                error = e
            reply.errors.append(error_to_proto(error))
            reply.digests.append(digest)
        return reply

    async def Get(self, request: control_pb2.GetRequest, context: Context) -> control_pb2.GetReply:  # noqa: N802
        """One entry with its source, or only its digest if that is too large for a message."""
        try:
            entry = self._catalogue.get(request.tenant, request.name, request.digest)
        except TartletError as e:
            return control_pb2.GetReply(error=error_to_proto(e))
        return control_pb2.GetReply(entry=entry if len(entry.source.data) <= _MESSAGE_BYTES else without_data(entry))

    async def Delete(self, request: control_pb2.DeleteRequest, context: Context) -> control_pb2.DeleteReply:  # noqa: N802
        """Forget one entry."""
        try:
            self._catalogue.delete(request.tenant, request.name)
        except TartletError as e:
            return control_pb2.DeleteReply(error=error_to_proto(e))
        return control_pb2.DeleteReply()

    def _with_data(self, entry: control_pb2.CatalogueEntry) -> control_pb2.CatalogueEntry:
        """The entry with its source, which may have been uploaded, or be another entry's."""
        digest = entry.source.digest
        if entry.source.data or not digest:
            return entry
        data = self._uploads.get(digest) or self._catalogue.source(digest)
        if data is None:
            raise InvalidSource(detail=f"it has no data, and nothing with digest {digest[:64]} was uploaded lately")
        full = control_pb2.CatalogueEntry()
        full.CopyFrom(entry)
        full.source.data = data
        return full

    async def List(  # noqa: N802
        self, request: control_pb2.CatalogueListRequest, context: Context
    ) -> control_pb2.CatalogueListReply:
        """A tenant's entries, as many as one message holds."""
        reply = control_pb2.CatalogueListReply()
        size = 0
        for entry in self._catalogue.list(request.tenant):
            size += entry.ByteSize() + 8
            if size > _MESSAGE_BYTES:
                break
            reply.entries.append(entry)
        return reply


def _too_large(size: int, limit: int) -> TartletError:
    return SourceTooLarge(size=size, limit=limit)
