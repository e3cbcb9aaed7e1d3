"""The demo model's adapter over real processes, one of which dies."""

from __future__ import annotations

from pathlib import Path

import tartlet
from tests.e2e.serving import client_of, program, serving
from tests.run_directory import run_directory

MODEL = Path(__file__).parents[3] / "models" / "demo"


async def test_a_context_goes_on_under_its_adapter_when_the_worker_is_killed() -> None:
    adapters = {"TARTLET_WORKER_ADAPTERS": f"polite={MODEL / 'adapters' / 'polite'}"}
    with run_directory() as directory, serving(directory, "--model", str(MODEL), engine="torch", **adapters) as server:
        async with client_of(server) as client:
            run = await client.run(program("polite"))
            async for event in run:
                if isinstance(event, tartlet.Message):
                    server.kill("worker")
                    await client.send(run.program_id, b"go on")
            assert run.ended is not None
            assert run.ended.error is None
            answer = "4+8+0=12 7+8+1=16 3+5+1=09 so 962 At your service!"
            assert run.ended.result == str([answer, answer])
