"""Programs that stand still show as such, and afterwards for how long, whatever part of the system was gone.

`tartlet ps` says so, and so does the program's span.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

import tartlet
from tartlet_common.errors.registry import TartletError
from tartlet_common.telemetry import names
from tests.e2e.receiver import Receiver, attributes, receiving
from tests.e2e.serving import out, program, serving

MOST_KILLS = 5
"""A worker that dies again and again is restarted later each time."""


@pytest.mark.timeout(300)
async def test_each_pause_of_a_program_is_shown_with_its_cause(run_dir: Path) -> None:
    async with asyncio.timeout(240), contextlib.AsyncExitStack() as stack:
        received, endpoint = stack.enter_context(receiving())
        env = {"TARTLET_WORKER_FAKE_STEP_S": "0.02", "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
        server = stack.enter_context(serving(run_dir, **env))
        client = await stack.enter_async_context(tartlet.AsyncClient(server.address))
        run = await client.launch(program("thinker"))
        await anext(await client.attach(run.program_id))
        known, states, before = 0, set[str](), ""
        for role in ("control", "runtime", "control", *["worker"] * MOST_KILLS):
            await client.send(run.program_id, "on")
            serves = server.text().count(f"{role} serves")
            server.kill(role)
            pauses = await looked_at(client, run.program_id, states, known, role)
            await asyncio.to_thread(server.until, f"{role} serves", serves + 1)
            # control's death may pause a program twice, and the second pause may be seen later
            assert {pause.cause for pause in pauses[known:]} <= {role, before}
            assert all(0 < pause.seconds < 60 for pause in pauses)
            known, before = len(pauses), role
            if role == "worker" and "recovering" in states:
                break  # a listing that was asked for as the worker died may be answered after the pause
        assert "recovering" in states
        [line] = [json.loads(line) for line in out(run_dir, "ps", "--json").splitlines()]
        assert line["state"] == "running"
        assert {pause["cause"] for pause in line["pauses"]} == {"worker", "control", "runtime"}
        assert line["recovered_s"] == sum(pause["seconds"] for pause in line["pauses"])
        header, row = out(run_dir, "ps").splitlines()
        assert f"{line['recovered_s']:.1f}s" == row[header.index("PAUSED") :].split()[0]
        await client.send(run.program_id, "stop")
        told = [(event[names.ATTR_PAUSE_CAUSE], event[names.ATTR_PAUSE]) for event in await exported(received)]
        [ended] = await client.list(ended=True)
        assert {cause for cause, _ in told} == {"worker", "control", "runtime"}
        first = [pause.cause for pause in ended.pauses].index("runtime")  # the span before died with its runtime
        assert told == [(pause.cause, pytest.approx(pause.seconds)) for pause in ended.pauses[first:]]


async def exported(received: Receiver) -> list[dict[str, Any]]:
    """Waits for the span of a program that has ended, and returns the attributes of its events about pauses."""
    while True:
        with received.lock:
            ended = [span for _, span in received.spans if span.name == names.SPAN_PROGRAM]
        if ended:
            return [attributes(event) for event in ended[0].events if event.name == names.EVENT_RECOVERING]
        await asyncio.sleep(0.02)


async def looked_at(
    client: tartlet.AsyncClient, program_id: str, states: set[str], known: int, cause: str
) -> tuple[tartlet.Pause, ...]:
    """Waits until a program runs and has a pause of a cause behind the first `known`; adds its states to `states`."""
    while True:
        with contextlib.suppress(TartletError):
            for info in await client.list(ended=True):
                if info.program_id == program_id:
                    assert info.error is None
                    states.add(info.state)
                    if info.state == "running" and cause in [pause.cause for pause in info.pauses[known:]]:
                        return info.pauses
        await asyncio.sleep(0.02)
