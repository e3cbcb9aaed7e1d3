"""Control as a process sees it: real gRPC over a Unix socket, a fake engine behind a real worker link."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np

from tartlet_common import abi
from tartlet_common.config.settings import ControlSettings
from tartlet_common.errors import registry as errors
from tartlet_common.process.role import Notify
from tartlet_common.rpc import endpoints
from tartlet_common.rpc.frame_streams import Joiner
from tartlet_control.app import main
from tartlet_protos import control_pb2, control_pb2_grpc
from tartlet_worker.fake import FakeEngine, FakeOptions
from tartlet_worker.serving.link import Link


@contextlib.asynccontextmanager
async def control(run_dir: Path, name: str = "c", **settings: Any) -> AsyncIterator[str]:
    address = f"unix:{run_dir}/run/{name}.sock"
    task = asyncio.create_task(main(ControlSettings(address=address, **settings), Notify(None)))
    while not (run_dir / "run" / f"{name}.sock").exists():
        await asyncio.sleep(0.01)
        assert not task.done(), task.exception()
    try:
        yield address
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@contextlib.asynccontextmanager
async def worker(address: str, options: FakeOptions | None = None, pool: str = "") -> AsyncIterator[Link]:
    ready = asyncio.Event()
    link = Link(FakeEngine(options or FakeOptions(page_size=4, num_pages=64)), address, None, ready.set, pool=pool)
    task = asyncio.create_task(link.run())
    await asyncio.wait_for(ready.wait(), 10)
    try:
        yield link
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, errors.TartletError):
            await task


class Runtime:
    """A minimal runtime."""

    frame_socket = True

    def __init__(self, address: str) -> None:
        self.channel = endpoints.make_channel(address)
        self.joiner = Joiner(address)
        self.stub: Any = control_pb2_grpc.ControlStub(self.channel)
        self.call: Any = self.stub.Connect()
        self.stream = self.call

    async def close(self) -> None:
        self.stream.cancel()
        await self.channel.close()

    async def begin(self, incarnation: str, *, frame_socket: bool = False, **fields: Any) -> None:
        hello = control_pb2.RuntimeHello(protocol=1, runtime_id="rt", incarnation=incarnation, **fields)
        hello.frame_socket = frame_socket
        await self.call.write(control_pb2.RuntimeFrame(hello=hello))

    async def hello(self, incarnation: str = "i", **fields: Any) -> Any:
        await self.begin(incarnation, frame_socket=self.frame_socket, **fields)
        frame = await self.read()
        assert bool(frame.hello.frames.ticket) == self.frame_socket
        self.stream = await self.joiner.join(self.call, frame.hello.frames, control_pb2.ControlFrame)
        return frame

    async def read(self) -> Any:
        return await asyncio.wait_for(self.stream.read(), 10)

    async def drain(self) -> None:
        while await self.read() is not grpc.aio.EOF:
            pass

    async def end(self) -> grpc.StatusCode:
        """Return the stream's status, which comes after its last frame."""
        with contextlib.suppress(grpc.aio.AioRpcError):
            while await self.stream.read() is not grpc.aio.EOF:
                pass
        code: grpc.StatusCode = await self.call.code()
        return code

    async def models(self) -> list[Any]:
        while True:
            frame = await self.read()
            if frame.models_changed and any(m.ready for m in frame.models):
                return list(frame.models)

    async def send(self, handle: int, submission: bytes, **parts: Any) -> None:
        batch = abi.decode(submission)
        handles = np.full(len(batch.records), handle, "<u4").tobytes()
        commands = control_pb2.Commands(handles=handles, records=batch.records.tobytes(), payload=batch.payload)
        await self.stream.write(control_pb2.RuntimeFrame(commands=commands, **parts))

    async def deliveries(self, count: int) -> list[tuple[int, ...]]:
        rows: list[tuple[int, ...]] = []
        while len(rows) < count:
            frame = await self.read()
            rows += np.frombuffer(frame.deliveries.records, abi.RECORD).tolist()
        return rows
