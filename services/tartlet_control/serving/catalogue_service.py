"""The gRPC service Catalogue: uploads, entries and listings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, TypeAlias, TypeVar

import grpc.aio

from tartlet_common.errors.registry import InvalidSource, Overloaded, SourceTooLarge, TartletError, UnknownInferlet
from tartlet_common.rpc.blob_transfer import receive
from tartlet_common.rpc.error_proto import error_to_proto
from tartlet_common.rpc.paging import room
from tartlet_common.rpc.tenancy import Scope, scope_of
from tartlet_control.serving.blobs import BlobStore
from tartlet_control.serving.catalogue import SOURCE_BYTES, Catalogue, without_data
from tartlet_protos import common_pb2, control_pb2, control_pb2_grpc

T = TypeVar("T")
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_MESSAGE_BYTES = 3 << 20
_QUICK_BYTES = 32 << 10
"""Bytes of a source that is digested sooner than a thread answers."""
UPLOADS_BYTES = 128 << 20
"""Uploads that may wait to be put. Beyond this the oldest are dropped."""
_UPLOADS_AT_ONCE = 4
MAX_UPLOADS = 256
"""Uploads that may be read at once, or wait to be read."""


class CatalogueService(control_pb2_grpc.CatalogueServicer):
    """Takes entries in and gives them out. Each item of a request is answered on its own."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._uploads = BlobStore(UPLOADS_BYTES)
        self._uploading = asyncio.Semaphore(_UPLOADS_AT_ONCE)
        self._num_uploads = 0
        self._changing = asyncio.Lock()
        self._changes: set[asyncio.Task[Any]] = set()  # they go on when their caller goes away

    async def Upload(  # noqa: N802
        self,
        request_iterator: AsyncIterator[common_pb2.BlobChunk],
        context: Context,
    ) -> control_pb2.UploadReply:
        """Keep a large source until it is put."""
        if self._num_uploads >= MAX_UPLOADS:
            return control_pb2.UploadReply(
                error=error_to_proto(Overloaded(what="the queue of uploads", limit=MAX_UPLOADS))
            )
        self._num_uploads += 1
        try:
            async with self._uploading:
                digest, data = await receive(request_iterator, SOURCE_BYTES, _too_large)
            self._uploads.keep(digest, data)
        except TartletError as e:
            return control_pb2.UploadReply(error=error_to_proto(e))
        finally:
            self._num_uploads -= 1
        return control_pb2.UploadReply(digest=digest)

    async def Put(  # noqa: N802
        self,
        request_iterator: AsyncIterator[control_pb2.PutRequest],
        context: Context,
    ) -> AsyncIterator[control_pb2.PutReply]:
        """Add or replace entries, request by request."""
        scope = scope_of(context)
        async for request in request_iterator:
            yield await self._put(request, scope)

    async def _put(self, request: control_pb2.PutRequest, scope: Scope) -> control_pb2.PutReply:
        async def put_all() -> control_pb2.PutReply:
            reply = control_pb2.PutReply()
            for entry in request.entries:
                digest, error = "", None
                try:
                    entry.tenant = scope.own(entry.tenant, "Put")
                    digest = self._catalogue.keep(await self._prepared(self._with_data(entry)))
                except TartletError as e:
                    error = e
                reply.errors.append(error_to_proto(error))
                reply.digests.append(digest)
            return reply

        return await self._change(put_all)

    async def Get(self, request: control_pb2.GetRequest, context: Context) -> control_pb2.GetReply:  # noqa: N802
        """Return an entry with its source, or with only the digest if the source is too large for a message."""
        try:
            tenant = _seen(scope_of(context), request.tenant, request.name or request.digest)
            entry = self._catalogue.get(tenant, request.name, request.digest)
        except TartletError as e:
            return control_pb2.GetReply(error=error_to_proto(e))
        return control_pb2.GetReply(entry=entry if len(entry.source.data) <= _MESSAGE_BYTES else without_data(entry))

    async def Delete(self, request: control_pb2.DeleteRequest, context: Context) -> control_pb2.DeleteReply:  # noqa: N802
        """Remove an entry."""
        try:
            tenant = _seen(scope_of(context), request.tenant, request.name)

            async def delete() -> None:
                self._catalogue.delete(tenant, request.name)

            await self._change(delete)
        except TartletError as e:
            return control_pb2.DeleteReply(error=error_to_proto(e))
        return control_pb2.DeleteReply()

    async def _change(self, make: Callable[[], Awaitable[T]]) -> T:
        """Make one change after another, each to its end, so that the disk and the listings agree."""

        async def alone() -> T:
            async with self._changing:
                return await make()

        change = asyncio.create_task(alone())
        self._changes.add(change)
        change.add_done_callback(self._changes.discard)
        return await asyncio.shield(change)

    async def _prepared(self, entry: control_pb2.CatalogueEntry) -> control_pb2.CatalogueEntry:
        """Prepare an entry. The slow part runs beside the loop, which serves every token meanwhile."""
        if self._catalogue.on_disk or len(entry.source.data) > _QUICK_BYTES:
            return await asyncio.to_thread(self._catalogue.prepare, entry)
        await asyncio.sleep(0)  # a request may hold hundreds
        return self._catalogue.prepare(entry)

    def _with_data(self, entry: control_pb2.CatalogueEntry) -> control_pb2.CatalogueEntry:
        """Return the entry with its source, which may have been uploaded or belong to another entry."""
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
        """Return a page of a tenant's entries."""
        try:
            tenant = _seen(scope_of(context), request.tenant, "")
        except UnknownInferlet:
            return control_pb2.CatalogueListReply()
        return page_of(self._catalogue.list(tenant, after=request.page_token), room(request.page_bytes))


def page_of(entries: Iterable[control_pb2.CatalogueEntry], room_bytes: int) -> control_pb2.CatalogueListReply:
    """Return as many of the first entries as there is room for, and at least one.

    The token is the last one's name: entries that come or go between two pages move no others.
    """
    reply = control_pb2.CatalogueListReply()
    for entry in entries:
        room_bytes -= entry.ByteSize() + 8
        if room_bytes < 0 and reply.entries:
            reply.next_page_token = reply.entries[-1].name
            break
        reply.entries.append(entry)
    return reply


def _seen(scope: Scope, tenant: str, name: str) -> str:
    """Return the tenant whose entries are asked for. Entries that the caller may not see don't exist for the caller."""
    tenant = tenant or scope.tenant or ""
    if not scope.allows(tenant):
        raise UnknownInferlet(inferlet=name[:128])
    return tenant


def _too_large(size: int, limit: int) -> TartletError:
    return SourceTooLarge(size=size, limit=limit)
