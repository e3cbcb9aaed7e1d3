"""If control dies while a run is launched, the same attempt launches the run's program once."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
from pathlib import Path

import tartlet
from tests.e2e.failures.test_restarts import WAITS
from tests.operator.api_server import ApiServer
from tests.operator.operator_process import live


async def test_a_run_is_launched_once_even_if_control_dies_during_the_launch(
    api_server: ApiServer, namespace: str, run_dir: Path
) -> None:
    async with live(api_server, namespace, run_dir) as it:
        module = base64.b64encode(WAITS.data).decode()
        it.core("POST", "api/v1", "configmaps", {"metadata": {"name": "code"}, "binaryData": {"waits": module}})
        it.create("Inferlet", "waits", {"language": "Wasm", "source": {"configMap": {"name": "code", "key": "waits"}}})
        await it.until_condition("Inferlet", "waits", "Ready")
        control = it.stack._children["control"]
        os.kill(control.pid, signal.SIGSTOP)  # it takes in what it is asked, and says nothing
        names = ("r", "s")
        for name in names:
            it.create("InferletRun", name, {"inferlet": "waits"})
        await asyncio.sleep(2.0)
        control.kill()
        await it.stack.until_serving("control")
        await it.until(lambda: all(it.condition("InferletRun", n, "Running")["status"] == "True" for n in names), 60)
        statuses = [it.get("InferletRun", name)["status"] for name in names]
        assert [status["attempts"] for status in statuses] == [1, 1]
        async with tartlet.AsyncClient(f"unix:{run_dir}/runtime.sock", tenant=namespace) as client:
            programs = {info.program_id: info.state for info in await client.list(ended=True)}
        assert programs == {status["programId"]: "running" for status in statuses}
