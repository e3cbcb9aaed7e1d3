"""gRPC service Catalogue."""

from __future__ import annotations

from typing import Any, TypeAlias

import grpc.aio

from tartlet_common.errors import TartletError
from tartlet_common.wire import error_to_proto
from tartlet_control.catalogue import Catalogue
from tartlet_protos import control_pb2, control_pb2_grpc

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_LIST_BYTES = 3 << 20


class CatalogueService(control_pb2_grpc.CatalogueServicer):
    """Entries in, entries out; each request's items are answered one by one."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    async def Put(self, request: control_pb2.PutRequest, context: Context) -> control_pb2.PutReply:  # noqa: N802
        """Add or replace entries."""
        reply = control_pb2.PutReply()
        for entry in request.entries:
            digest, error = "", None
            try:
                digest = self._catalogue.put(entry)
            except TartletError as e:
                error = e
            reply.errors.append(error_to_proto(error))
            reply.digests.append(digest)
        return reply

    async def Get(self, request: control_pb2.GetRequest, context: Context) -> control_pb2.GetReply:  # noqa: N802
        """One entry with its source."""
        try:
            return control_pb2.GetReply(entry=self._catalogue.get(request.tenant, request.name, request.digest))
        except TartletError as e:
            return control_pb2.GetReply(error=error_to_proto(e))

    async def Delete(self, request: control_pb2.DeleteRequest, context: Context) -> control_pb2.DeleteReply:  # noqa: N802
        """Forget one entry."""
        try:
            self._catalogue.delete(request.tenant, request.name)
        except TartletError as e:
            return control_pb2.DeleteReply(error=error_to_proto(e))
        return control_pb2.DeleteReply()

    async def List(  # noqa: N802
        self, request: control_pb2.CatalogueListRequest, context: Context
    ) -> control_pb2.CatalogueListReply:
        """A tenant's entries, as many as one message holds."""
        reply = control_pb2.CatalogueListReply()
        size = 0
        for entry in self._catalogue.list(request.tenant):
            size += entry.ByteSize() + 8
            if size > _LIST_BYTES:
                break
            reply.entries.append(entry)
        return reply
