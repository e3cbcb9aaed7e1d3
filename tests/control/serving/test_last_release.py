"""Control serves programs on workers of the last release, so that a cluster can be upgraded role by role."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tartlet_common import abi
from tartlet_common.abi import Event, Op
from tartlet_common.engine.step_codec import result_to_proto
from tartlet_common.errors.base import TartletError
from tartlet_common.errors.registry import UnsupportedTrait
from tartlet_common.rpc import endpoints
from tartlet_protos import control_pb2, engine_pb2, engine_pb2_grpc
from tartlet_worker.fake import FakeOptions
from tests.control.last_release import PROTOCOL, LastRelease
from tests.control.served import Runtime, control

OPTIONS = FakeOptions(page_size=4, num_pages=64)


async def work(address: str, joined: asyncio.Event) -> None:
    """Be a worker of the last release: say its Hello, which names one protocol, and run steps."""
    fake = LastRelease(OPTIONS)
    spec = asdict(fake.spec) | {"tokenizer_digest": ""}
    del spec["logprobs_limit"]  # the last release didn't have it
    async with endpoints.make_channel(address) as channel:
        stream: Any = engine_pb2_grpc.EngineStub(channel).Connect()
        hello = engine_pb2.WorkerHello(protocol=PROTOCOL, engine_id="e", incarnation="i", spec_json=json.dumps(spec))
        await stream.write(engine_pb2.WorkerFrame(hello=hello))
        reply = (await stream.read()).hello
        assert (reply.error.number, reply.protocol) == (0, PROTOCOL)
        joined.set()
        while True:
            frame = await stream.read()
            results = [result_to_proto(fake.take(step)) for step in frame.steps]
            if results:
                await stream.write(engine_pb2.WorkerFrame(control_incarnation=reply.incarnation, results=results))


def table_submission(options: bytes = b"") -> bytes:
    """Three tokens over a page table; the second and the third are computed from the token before."""
    w = abi.Writer()
    w.add(Op.ALLOC_EMB, payload=abi.u32([0]))
    w.add(Op.ALLOC_SLOT, payload=abi.u32([0]))
    w.add(Op.TABLE, c=2)
    params = np.zeros(1, abi.SAMPLE_PARAMS)
    params["top_p"] = 1.0
    for i in range(3):
        ticket = 3 * i
        w.add(Op.EMBED_TXT, ticket=ticket + 1, a=1, b=int(i > 0), payload=abi.u32([0, 0 if i else 5, i]))
        w.add(Op.FORWARD_TABLE, ticket=ticket + 2, b=i, payload=abi.u32([1, 1, 0, 0, 0]))
        w.add(Op.SAMPLE, ticket=ticket + 3, payload=params.tobytes() + options)
    return w.finish()


@pytest.mark.parametrize("with_options", [False, True])
async def test_a_program_with_page_tables_runs_on_a_worker_of_the_last_release(
    run_dir: Path, with_options: bool
) -> None:
    asked = np.zeros(1, abi.SAMPLE_OPTIONS)
    asked["top"], asked["repetition"] = 2, 1.0
    async with control(run_dir) as address:
        joined = asyncio.Event()
        worker = asyncio.create_task(work(address, joined))
        await asyncio.wait_for(joined.wait(), 10)
        rt = Runtime(address)
        await rt.hello()
        await rt.models()
        await rt.stream.write(control_pb2.RuntimeFrame(starts=[control_pb2.ProgramStart(handle=3, program_id="p")]))
        assert (await rt.read()).started[0].error.number == 0
        await rt.send(3, table_submission(asked.tobytes() if with_options else b""))
        rows = await rt.deliveries(1 if with_options else 3)
        if with_options:
            assert rows[0][0] == Event.FAILURE
            assert TartletError.from_wire(rows[0][4], b"{}").number == UnsupportedTrait.number
        else:
            assert [row[0] for row in rows] == [Event.RESULT] * 3
        assert not worker.done()
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        await rt.close()
