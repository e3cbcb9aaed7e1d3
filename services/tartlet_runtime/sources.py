"""Where a program's bytes come from: the launch itself, an earlier launch (by digest), or control's catalogue."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

import grpc
import grpc.aio

from tartlet_common.errors import InvalidSource, Unavailable, UnknownInferlet
from tartlet_common.wire import error_from_proto
from tartlet_protos import common_pb2, control_pb2, control_pb2_grpc, programs_pb2

_KEPT_BYTES = 64 << 20
_TIMEOUT_S = 5.0


class Sources:
    """Sources by digest, the most recent ones kept in memory."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """`channel` to control."""
        self._catalogue = control_pb2_grpc.CatalogueStub(channel)
        self._kept: OrderedDict[str, common_pb2.Source] = OrderedDict()
        self._bytes = 0

    async def find(self, asked: programs_pb2.LaunchSpec) -> tuple[programs_pb2.LaunchSpec, common_pb2.Source]:
        """The launch with its inferlet's defaults, and its source.

        Raises:
            UnknownInferlet: the catalogue has none of that name.
            InvalidSource: nobody knows the digest.
            Unavailable: control can't be reached.
        """
        if not asked.inferlet:
            return asked, await self.resolve(asked.source)
        request = control_pb2.GetRequest(tenant=asked.tenant, name=asked.inferlet)
        entry = (await self._get(request)).entry
        if not entry.name:
            raise UnknownInferlet(inferlet=asked.inferlet)
        full = programs_pb2.LaunchSpec(limits=entry.limits, model=entry.model)
        full.MergeFrom(asked)  # what the launch says wins over the catalogue
        return full, await self.resolve(entry.source)

    async def resolve(self, source: common_pb2.Source) -> common_pb2.Source:
        """The source with its data.

        Raises:
            InvalidSource: nobody knows the digest.
            Unavailable: control can't be reached.
        """
        if source.data or not source.digest:
            self.keep(source)
            return source
        kept = self._kept.get(source.digest)
        if kept is not None:
            self._kept.move_to_end(source.digest)
            return kept
        entry = (await self._get(control_pb2.GetRequest(digest=source.digest))).entry
        if not entry.source.data:
            raise InvalidSource(detail=f"nobody knows a program with digest {source.digest}")
        self.keep(entry.source)
        return entry.source

    def keep(self, source: common_pb2.Source) -> None:
        """Remember a source for launches that name its digest only."""
        digest = hashlib.sha256(source.data).hexdigest()
        if digest in self._kept or len(source.data) > _KEPT_BYTES // 4:
            return
        kept = common_pb2.Source()
        kept.CopyFrom(source)
        kept.digest = digest
        self._kept[digest] = kept
        self._bytes += len(kept.data)
        while self._bytes > _KEPT_BYTES:
            self._bytes -= len(self._kept.popitem(last=False)[1].data)

    async def _get(self, request: control_pb2.GetRequest) -> control_pb2.GetReply:
        try:
            reply: control_pb2.GetReply = await self._catalogue.Get(request, timeout=_TIMEOUT_S)
        except grpc.RpcError as e:
            raise Unavailable(what="control's catalogue", detail=repr(e)) from e
        error = error_from_proto(reply.error)
        if error is not None:
            raise error
        return reply
