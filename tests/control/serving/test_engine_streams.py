"""Control's ends of workers' streams: real gRPC, a worker that the tests drive frame by frame."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tartlet_common.rpc import endpoints
from tartlet_common.rpc.resume import ACK_S
from tartlet_protos import control_pb2, control_pb2_grpc, engine_pb2, engine_pb2_grpc
from tests.control.served import control
from tests.runtime.fake_control import engine_spec


@pytest.mark.parametrize("protocol", [1, 2])
async def test_an_engine_stays_over_a_break_only_if_its_worker_can_resume(run_dir: Path, protocol: int) -> None:
    async with control(run_dir, engine_grace_s=30) as address, endpoints.make_channel(address) as channel:
        stub: Any = engine_pb2_grpc.EngineStub(channel)
        spec = json.dumps(asdict(engine_spec(tokenizer_digest="")))
        hello = engine_pb2.WorkerHello(engine_id="e", incarnation="i", spec_json=spec, protocol=1)
        hello.newest_protocol = 0 if protocol == 1 else 7  # of a release to come
        stream = stub.Connect()
        await stream.write(engine_pb2.WorkerFrame(hello=hello))
        reply = (await stream.read()).hello
        assert (reply.error.number, reply.protocol) == (0, protocol)
        stream.cancel()
        watch: Any = control_pb2_grpc.ControlStub(channel)
        async with asyncio.timeout(10):
            while True:
                engines = json.loads((await watch.State(control_pb2.StateRequest())).json)["engines"]
                if [e["state"] for e in engines] == (["resuming"] if protocol == 2 else []):
                    break
                await asyncio.sleep(0.02)


async def test_a_broken_engine_whose_stream_stays_open_holds_nobody_up(run_dir: Path) -> None:
    """Control owes an acknowledgement when it gives the engine up, which is due before the stream ends."""
    async with control(run_dir) as address, endpoints.make_channel(address) as channel:
        stub: Any = engine_pb2_grpc.EngineStub(channel)
        spec = json.dumps(asdict(engine_spec(tokenizer_digest="")))
        hello = engine_pb2.WorkerHello(engine_id="e", incarnation="i", spec_json=spec, protocol=1, newest_protocol=2)
        stream = stub.Connect()
        await stream.write(engine_pb2.WorkerFrame(hello=hello))
        await stream.read()
        await stream.write(engine_pb2.WorkerFrame(state="broken", number=1))
        await asyncio.sleep(2 * ACK_S)
        watch: Any = control_pb2_grpc.ControlStub(channel)
        reply = await asyncio.wait_for(watch.State(control_pb2.StateRequest()), 10)
        assert json.loads(reply.json)["engines"] == []
        stream.cancel()


async def test_a_hello_that_is_refused_does_not_make_an_engine_stale(run_dir: Path) -> None:
    """The first Hello has a high epoch, which would keep out the engine for as long as epochs are remembered."""
    good = json.dumps(asdict(engine_spec(tokenizer_digest="")))
    numbers = []
    async with control(run_dir) as address, endpoints.make_channel(address) as channel:
        stub: Any = engine_pb2_grpc.EngineStub(channel)
        for spec_json, epoch in (("{}", 1 << 62), (good, 100)):
            hello = engine_pb2.WorkerHello(engine_id="e", incarnation="i", protocol=1, newest_protocol=2)
            hello.spec_json, hello.epoch = spec_json, epoch
            stream = stub.Connect()
            await stream.write(engine_pb2.WorkerFrame(hello=hello))
            numbers.append((await asyncio.wait_for(stream.read(), 10)).hello.error.number)
            stream.cancel()
    assert (bool(numbers[0]), numbers[1]) == (True, 0)
