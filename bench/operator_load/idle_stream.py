"""A process that only holds one gRPC stream to control: it shows what gRPC's own threads take at rest."""

from __future__ import annotations

import asyncio
import sys

from bench.product.common import Dialer, OperatorSettings, install_uvloop
from tartlet_protos import control_pb2, control_pb2_grpc


async def main(address: str) -> None:
    """Watch control's engines, with the operator's own heartbeat, until killed."""
    dialer = Dialer(address, None, role="control")
    stub: control_pb2_grpc.ControlAsyncStub = control_pb2_grpc.ControlStub(dialer.channel)
    async for _ in stub.WatchEngines(control_pb2.WatchEnginesRequest(every_s=OperatorSettings().heartbeat_s)):
        pass


if __name__ == "__main__":
    install_uvloop()
    asyncio.run(main(sys.argv[1]))
