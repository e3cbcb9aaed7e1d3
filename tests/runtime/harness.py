"""What the runtime's tests share: a runtime in this process under a small control, a native guest without the SDK."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import Any

import grpc
import grpc.aio

from tartlet_common.abi import Batch, Event, Flag, Writer, decode
from tartlet_common.capabilities import Ceilings
from tartlet_common.config.settings import RuntimeSettings
from tartlet_common.egress.addresses import Exceptions
from tartlet_common.errors.registry import TartletError
from tartlet_common.rpc.endpoints import make_channel
from tartlet_protos import common_pb2, programs_pb2, programs_pb2_grpc
from tartlet_runtime.app import main
from tartlet_runtime.budget.ledger import Ledger
from tartlet_runtime.children.child_ops import ChildOps
from tartlet_runtime.guests.native import DELIVERY, END, ERROR, HELLO, SUBMIT, WAIT, WELCOME, frame
from tartlet_runtime.web.http_ops import HttpOps
from tartlet_runtime.web.sending import Sender
from tests.runtime.fake_control import FakeControl, serve_control

FOREVER = 2**64 - 1
_Event = programs_pb2.ProgramEvent
PYTHON, WASM, NATIVE = common_pb2.Source.PYTHON, common_pb2.Source.WASM, common_pb2.Source.NATIVE


@dataclass
class Rig:
    """A running runtime with its control and clients' stubs."""

    directory: Path
    settings: RuntimeSettings
    control: FakeControl
    stub: programs_pb2_grpc.ProgramsAsyncStub
    control_server: grpc.aio.Server
    guests: list[NativeProgram] = field(default_factory=list)

    async def restart_control(self, incarnation: str = "c2") -> None:
        await self.stop_control()
        self.control = FakeControl(incarnation=incarnation)
        await self.start_control()

    async def stop_control(self) -> None:
        await self.control_server.stop(None)

    async def start_control(self) -> None:
        self.control_server = await serve_control(self.control, self.settings.control)

    async def connected(self) -> None:
        await until(lambda: bool(self.control.frames))


class Ready:
    """Stands in the place of process.Notify."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def ready(self, detail: str = "") -> None:
        self.event.set()

    def set_ready(self, reason_if_not: str = "") -> None:
        self.reason_if_not = reason_if_not


def make_settings(directory: Path, **changes: Any) -> RuntimeSettings:
    fields: dict[str, Any] = {
        "address": f"unix:{directory}/r.sock",
        "control": f"unix:{directory}/c.sock",
        "guest_socket": directory / "g.sock",
        "journal_dir": directory / "journals",
        "capacity": 100,  # a pool reserves 8 GiB of addresses a program, and a test process sees many pools
    }
    return RuntimeSettings(**fields | changes)


@contextlib.asynccontextmanager
async def running(directory: Path, control: FakeControl | None = None, **changes: Any) -> AsyncIterator[Rig]:
    """A runtime and its control, until the block ends."""
    settings = make_settings(directory, **changes)
    control = control or FakeControl()
    server = await serve_control(control, settings.control)
    ready = Ready()
    role = asyncio.ensure_future(main(settings, ready))  # type: ignore[arg-type]
    waiting = asyncio.ensure_future(ready.event.wait())
    await asyncio.wait([role, waiting], return_when=asyncio.FIRST_COMPLETED)
    if role.done():
        role.result()
    channel = make_channel(settings.address)
    rig = Rig(directory, settings, control, programs_pb2_grpc.ProgramsStub(channel), server)
    try:
        await rig.connected()
        yield rig
    finally:
        for guest in rig.guests:
            guest.writer.close()
        await channel.close()
        role.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await role
        await rig.control_server.stop(None)
        gc.collect()  # the pool's addresses are free when the engine is


def no_requests() -> HttpOps:
    """HTTP for programs that may ask no host."""
    return HttpOps(Sender(Exceptions()), Ceilings(), Ledger(1 << 30))


def no_children() -> ChildOps:
    """Children of programs that start none."""
    return ChildOps(asyncio.ensure_future, Ledger(1 << 30))


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Wait for a condition that other tasks bring about."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what it waits for is another process or task of the role
            await asyncio.sleep(0.005)


def launch_spec(language: int = NATIVE, data: bytes = b"", **fields: Any) -> programs_pb2.LaunchSpec:
    source = common_pb2.Source(language=language, data=data, filename=fields.pop("filename", "prog.py"))  # type: ignore[arg-type]
    return programs_pb2.LaunchSpec(source=source, **{"attach": True, "durable": True} | fields)


class Stream:
    """Events of one Launch or Attach call."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.seen: list[programs_pb2.ProgramEvent] = []
        self._ahead: list[programs_pb2.ProgramEvent] = []

    async def next(self, seconds: float = 10.0) -> programs_pb2.ProgramEvent:
        async with asyncio.timeout(seconds):
            while not self._ahead:
                message = await self.call.read()
                assert message is not grpc.aio.EOF, "the stream is over"
                self._ahead = list(message.events)
        event = self._ahead.pop(0)
        self.seen.append(event)
        return event

    async def rest(self, seconds: float = 20.0) -> list[programs_pb2.ProgramEvent]:
        events, self._ahead = self._ahead, []
        async with asyncio.timeout(seconds):
            while (message := await self.call.read()) is not grpc.aio.EOF:
                events.extend(message.events)
        return events


class NativeProgram:
    """A native guest without the SDK, driven by the test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.welcome: dict[str, Any] = {}

    @classmethod
    async def connect(cls, rig: Rig, token: bytes) -> NativeProgram:
        guest = cls(*await asyncio.open_unix_connection(str(rig.settings.guest_socket), limit=8 << 20))
        guest.write(HELLO, token)
        rig.guests.append(guest)
        kind, body = await guest.frame()
        assert kind == WELCOME, (kind, body)
        guest.welcome = json.loads(body)
        return guest

    def write(self, kind: int, body: bytes) -> None:
        self.writer.write(frame(kind, body))

    def submit(self, *rows: tuple[int, dict[str, Any]]) -> None:
        writer = Writer()
        for op, fields in rows:
            writer.add(op, **fields)
        self.write(SUBMIT, writer.finish())

    async def frame(self) -> tuple[int, bytes]:
        async with asyncio.timeout(10):
            length = int.from_bytes(await self.reader.readexactly(4), "little")
            data = await self.reader.readexactly(length)
        return data[0], data[1:]

    async def wait(self, max_records: int = 0, timeout_us: int = FOREVER) -> Batch:
        self.write(WAIT, Struct("<IQ").pack(max_records, timeout_us))
        kind, body = await self.frame()
        if kind == ERROR:
            raise TartletError.from_wire(int.from_bytes(body[:4], "little"), body[4:])
        assert kind == DELIVERY, kind
        return decode(body)

    async def call(self, op: int, **fields: Any) -> bytes:
        """Submit one awaited command and return its answer's payload; a failure is raised."""
        self.submit((op, {"flags": Flag.AWAIT, "ticket": 1} | fields))
        batch = await self.wait()
        row = batch.records[0].tolist()
        payload = batch.payload[row[7] : row[7] + row[8]]
        if row[0] == Event.FAILURE:
            raise TartletError.from_wire(row[4], payload)
        assert row[0] == Event.RESULT
        return payload

    def end(self, *, ok: bool = True, text: str = "") -> None:
        self.write(END, bytes([ok]) + text.encode())


async def native(rig: Rig, **fields: Any) -> tuple[Stream, NativeProgram]:
    """Launch one native program and connect to it."""
    stream = Stream(rig.stub.Launch(programs_pb2.LaunchRequest(specs=[launch_spec(**fields)])))
    accepted = await stream.next()
    assert accepted.kind == _Event.ACCEPTED, accepted
    return stream, await NativeProgram.connect(rig, accepted.data)
