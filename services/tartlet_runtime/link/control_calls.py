"""Single calls to control, beside the stream of frames."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from tartlet_common.errors.registry import Unavailable
from tartlet_common.rpc.endpoints import Dialer, detail
from tartlet_common.rpc.tenancy import EVERYONE, Scope
from tartlet_protos import control_pb2, control_pb2_grpc

LOCATE_TIMEOUT_S = 2.0
MAX_BLOB_BYTES = 256 << 20


class ControlCalls:
    """The calls that a runtime makes for itself and for its clients."""

    def __init__(self, control: Dialer) -> None:
        """Start unconnected. Calls other than `fetch` aren't made while `connected` is false."""
        self._control = control
        self.connected = False

    @property
    def _stub(self) -> control_pb2_grpc.ControlAsyncStub:
        return control_pb2_grpc.ControlStub(self._control.channel)

    async def fetch(self, digest: str) -> bytes:
        """Return a blob by its digest.

        Raises:
            Unavailable: control can't be reached, or doesn't have it.
        """
        parts: list[bytes] = []
        size = 0
        try:
            async for chunk in self._stub.FetchBlob(control_pb2.BlobRequest(digest=digest), wait_for_ready=True):
                parts.append(chunk.data)
                size += len(chunk.data)
                if size > MAX_BLOB_BYTES:
                    raise Unavailable(what=f"blob {digest[:12]}", detail=f"it is larger than {MAX_BLOB_BYTES} bytes")
        except grpc.RpcError as e:
            raise Unavailable(what=f"blob {digest[:12]}", detail=detail(e)) from e
        return b"".join(parts)

    async def locate(self, program_ids: Sequence[str], scope: Scope = EVERYONE) -> control_pb2.LocateReply:
        """Return where programs run, as far as `scope` may know, and which runtimes there are.

        Raises:
            Unavailable: control can't be reached.
        """
        if not self.connected:
            raise Unavailable(what="control", detail="it knows where programs run, and can't be reached")
        try:
            request = control_pb2.LocateRequest(program_ids=program_ids)
            reply: control_pb2.LocateReply = await self._stub.Locate(
                request, timeout=LOCATE_TIMEOUT_S, metadata=scope.metadata
            )
        except grpc.RpcError as e:
            raise Unavailable(what="control", detail=detail(e)) from e
        return reply

    async def state_json(self, scope: Scope = EVERYONE) -> str:
        """Return control's State reply, "" while control can't be reached."""
        if not self.connected:
            return ""
        try:
            reply = await self._stub.State(control_pb2.StateRequest(), timeout=2.0, metadata=scope.metadata)
        except grpc.RpcError:
            return ""
        return str(reply.json)
