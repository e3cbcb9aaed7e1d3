"""Who watches engines."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from tartlet_common.rpc import endpoints
from tartlet_control.serving.watching import service as watching
from tartlet_protos import control_pb2, control_pb2_grpc, engine_pb2, engine_pb2_grpc
from tests.control.served import Runtime, control, worker
from tests.control.serving.test_servers import decode_submission


def test_who_watches_engines_hears_at_once_what_becomes_of_them_and_that_control_is_there(run_dir: Path) -> None:
    async def body() -> None:
        async with control(run_dir) as address:
            channel = endpoints.make_channel(address)
            stub: Any = control_pb2_grpc.ControlStub(channel)
            seldom = stub.WatchEngines(control_pb2.WatchEnginesRequest(every_s=60))

            async def hear() -> list[tuple[str, str]]:
                reply = await asyncio.wait_for(seldom.read(), 10)
                assert reply.incarnation
                return [(e.id, e.state) for e in reply.engines]

            assert await hear() == []
            async with worker(address):
                ((name, state),) = await hear()
                assert state == "ready"
                await stub.Cordon(control_pb2.EngineAction(engine_id=name))
                assert await hear() == [(name, "cordoned")]
                await stub.Resume(control_pb2.EngineAction(engine_id=name))
                assert await hear() == [(name, "ready")]
            assert await hear() == []
            for every_s in (0.0, -1.0, float("-inf")):
                often = stub.WatchEngines(control_pb2.WatchEnginesRequest(every_s=every_s))
                replies = [await asyncio.wait_for(often.read(), 10) for _ in range(3)]
                assert {len(reply.engines) for reply in replies} == {0}
                often.cancel()
            with pytest.raises(TimeoutError):  # nothing has become of any engine
                await asyncio.wait_for(seldom.read(), 0.5)
            await channel.close()

    asyncio.run(body())


def test_how_many_programs_run_is_told_when_it_has_changed(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_PROGRAMS_S", 0.05)

    async def body() -> None:
        async with control(run_dir) as address, worker(address):
            rt = Runtime(address)
            await rt.hello()
            await rt.models()
            watch = rt.stub.WatchEngines(control_pb2.WatchEnginesRequest(every_s=60))
            assert [e.programs for e in (await watch.read()).engines] == [0]
            start = control_pb2.ProgramStart(handle=1, program_id="p")
            await rt.stream.write(control_pb2.RuntimeFrame(starts=[start]))
            await rt.send(1, decode_submission(1))
            assert [e.programs for e in (await asyncio.wait_for(watch.read(), 10)).engines] == [1]
            await rt.stream.write(control_pb2.RuntimeFrame(ends=[control_pb2.ProgramEnd(handle=1)]))
            assert [e.programs for e in (await asyncio.wait_for(watch.read(), 10)).engines] == [0]
            await rt.close()

    asyncio.run(body())


def test_an_engine_whose_id_another_takes_hears_of_it_and_comes_back(run_dir: Path) -> None:
    async def body() -> None:
        async with control(run_dir) as address, worker(address) as link, endpoints.make_channel(address) as channel:
            stub: Any = engine_pb2_grpc.EngineStub(channel)
            other = stub.Connect()
            hello = engine_pb2.WorkerHello(
                protocol=endpoints.OLDEST_PROTOCOL,
                engine_id=link._engine_id,
                incarnation="another's",
                spec_json=json.dumps(asdict(link._engine.spec)),
            )
            await other.write(engine_pb2.WorkerFrame(hello=hello))
            assert not (await asyncio.wait_for(other.read(), 10)).hello.HasField("error")
            # the first one says Hello again, and so this one has to go
            assert await asyncio.wait_for(other.read(), 10) is grpc.aio.EOF
            rt = Runtime(address)
            state = json.loads((await rt.stub.State(control_pb2.StateRequest())).json)
            assert [engine["id"] for engine in state["engines"]] == [link._engine_id]
            await rt.close()

    asyncio.run(body())
