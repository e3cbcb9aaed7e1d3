"""`tartlet ps` says which programs stand still, and afterwards for how long, whatever part of the system was gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

import tartlet
from tartlet_common.errors.registry import TartletError
from tests.e2e.serving import out, program, serving

MOST_KILLS = 5
"""A worker that dies again and again is restarted later each time."""


async def test_each_pause_of_a_program_is_shown_with_its_cause(run_dir: Path) -> None:
    async with asyncio.timeout(120), contextlib.AsyncExitStack() as stack:
        server = stack.enter_context(serving(run_dir, TARTLET_WORKER_FAKE_STEP_S="0.02"))
        client = await stack.enter_async_context(tartlet.AsyncClient(server.address))
        run = await client.launch(program("thinker"))
        await anext(await client.attach(run.program_id))
        known, states = 0, set[str]()
        for role in ("control", "runtime", *["worker"] * MOST_KILLS):
            await client.send(run.program_id, "on")
            serves = server.text().count(f"{role} serves")
            server.kill(role)
            pauses = await looked_at(client, run.program_id, states, known)
            await asyncio.to_thread(server.until, f"{role} serves", serves + 1)
            assert {pause.cause for pause in pauses[known:]} == {role}
            assert all(0 < pause.seconds < 60 for pause in pauses)
            known = len(pauses)
            if role == "worker" and "recovering" in states:
                break  # a listing that was asked for as the worker died may be answered after the pause
        assert "recovering" in states
        [line] = [json.loads(line) for line in out(run_dir, "ps", "--json").splitlines()]
        assert line["state"] == "running"
        assert {pause["cause"] for pause in line["pauses"]} == {"worker", "control", "runtime"}
        assert line["recovered_s"] == sum(pause["seconds"] for pause in line["pauses"])
        header, row = out(run_dir, "ps").splitlines()
        assert f"{line['recovered_s']:.1f}s" == row[header.index("PAUSED") :].split()[0]


async def looked_at(
    client: tartlet.AsyncClient, program_id: str, states: set[str], known: int
) -> tuple[tartlet.Pause, ...]:
    """Adds a program's states to `states` until it runs and has more than `known` pauses, and returns these."""
    while True:
        with contextlib.suppress(TartletError):
            for info in await client.list(ended=True):
                if info.program_id == program_id:
                    assert info.error is None
                    states.add(info.state)
                    if info.state == "running" and len(info.pauses) > known:
                        return info.pauses
        await asyncio.sleep(0.02)
