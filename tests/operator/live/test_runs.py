"""Runs whose operator or runtime is away: deleted runs' programs end, and deadlines hold."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import uuid
from datetime import datetime
from pathlib import Path
from typing import Any

import tartlet
from tests.operator.api_server import ApiServer
from tests.operator.live.test_inferlets import SLEEPING, web_server
from tests.operator.operator_process import Live, live

ODD = "\U0001f600 \x00\x1b[1m\x7f\x85\x9f\u2028\ufeff\uffff\U0001fffe \u00e9\t"
"""Characters of models and terminals that YAML, JSON and the API server treat differently."""
SHOWN = "\U0001f600 \x00\x1b[1m\ufffd\x85\ufffd\u2028\ufeff\ufffd\U0001fffe \u00e9\t"


async def started(it: Live, name: str, deadline_s: int = 600) -> str:
    """Create a run that sleeps, and return its program's id once the program runs."""
    it.create("InferletRun", name, {"inferlet": "sleeping", "deadlineSeconds": deadline_s})
    await it.until(lambda: it.get("InferletRun", name).get("status", {}).get("output") == "begin\n")
    return str(it.get("InferletRun", name)["status"]["programId"])


async def test_a_run_deleted_while_no_operator_ran_ends_its_program_and_no_other(
    api_server: ApiServer, namespace: str, run_dir: Path
) -> None:
    async with live(api_server, namespace, run_dir) as it:
        it.create("Inferlet", "sleeping", {"source": {"inline": SLEEPING}})
        unwanted, kept = await started(it, "unwanted"), await started(it, "kept")
        async with tartlet.AsyncClient(f"unix:{run_dir}/runtime.sock") as client:
            spec = tartlet.LaunchSpec(tartlet.Source.python(SLEEPING), tenant=namespace)
            keyed = tartlet.LaunchSpec(spec.source, tenant=namespace, idempotency_key=f"{uuid.uuid4()}-1")
            own = {(await client.launch(spec=s)).program_id for s in (spec, keyed)}
            it.operator.kill()
            it.delete("InferletRun", "unwanted")
            it.operator.start()
            async with asyncio.timeout(60):
                ended = await (await client.attach(unwanted)).wait()
            assert isinstance(ended.error, tartlet.TartletError)
            assert ended.error.name == "ProgramKilled"
            left = {info.program_id for info in await client.list(tenant=namespace)}
        assert left == {kept, *own}
        assert it.get("InferletRun", "kept")["status"]["phase"] == "Running"


async def test_a_run_deleted_while_its_runtime_is_silent_ends_its_program(
    api_server: ApiServer, namespace: str, run_dir: Path
) -> None:
    async with live(api_server, namespace, run_dir) as it:
        it.create("Inferlet", "sleeping", {"source": {"inline": SLEEPING}})
        program = await started(it, "unwanted")
        runtime = it.stack._children["runtime"]
        os.kill(runtime.pid, signal.SIGSTOP)
        try:
            it.delete("InferletRun", "unwanted")
            await it.until(lambda: f"program {program} can't be ended" in it.operator.log, 15)
        finally:
            os.kill(runtime.pid, signal.SIGCONT)
        async with tartlet.AsyncClient(f"unix:{run_dir}/runtime.sock") as client, asyncio.timeout(30):
            ended = await (await client.attach(program)).wait()
        assert isinstance(ended.error, tartlet.TartletError)
        assert ended.error.name == "ProgramKilled"


async def test_a_run_past_max_runs_says_so_and_its_deadline_holds(
    api_server: ApiServer, namespace: str, run_dir: Path
) -> None:
    async with live(api_server, namespace, run_dir, "--max-runs=1") as it:
        it.create("Inferlet", "sleeping", {"source": {"inline": SLEEPING}})
        await started(it, "first")
        it.create("InferletRun", "late", {"inferlet": "sleeping", "deadlineSeconds": 4})
        it.create("InferletRun", "patient", {"inferlet": "sleeping"})
        for name in ("late", "patient"):
            waits = await it.until_condition("InferletRun", name, "Running", "False", "TooManyRuns")
            assert "1 runs" in waits["message"]
        failed = await it.until_condition("InferletRun", "late", "Failed")
        assert failed["reason"] == "DeadlineExceeded"
        assert it.get("InferletRun", "late")["status"]["attempts"] == 0
        it.delete("InferletRun", "first")
        await it.until_condition("InferletRun", "patient", "Running")


async def test_an_unanswered_run_says_so_and_its_deadline_holds(
    api_server: ApiServer, namespace: str, run_dir: Path
) -> None:
    async with live(api_server, namespace, run_dir) as it:
        it.create("Inferlet", "sleeping", {"source": {"inline": SLEEPING}})
        await it.until_condition("Inferlet", "sleeping", "Ready")
        runtime = it.stack._children["runtime"]
        os.kill(runtime.pid, signal.SIGSTOP)  # it answers nothing, and nothing says that it won't
        try:
            for name, deadline_s in (("late", 3), ("patient", 600)):
                it.create("InferletRun", name, {"inferlet": "sleeping", "deadlineSeconds": deadline_s})
            failed = await it.until_condition("InferletRun", "late", "Failed", timeout_s=10)
            assert failed["reason"] == "DeadlineExceeded"
            await it.until_condition("InferletRun", "patient", "Running", "False", "Unavailable", timeout_s=30)
        finally:
            os.kill(runtime.pid, signal.SIGCONT)
        await it.until_condition("InferletRun", "patient", "Running", timeout_s=40)
        assert it.get("InferletRun", "patient")["status"]["attempts"] == 1


async def test_a_late_answer_to_a_launch_leaves_the_run_its_whole_deadline(
    api_server: ApiServer, namespace: str, run_dir: Path
) -> None:
    async with live(api_server, namespace, run_dir, "--lease-duration-s=30") as it:
        it.create("Inferlet", "sleeping", {"source": {"inline": SLEEPING}})
        await it.until_condition("Inferlet", "sleeping", "Ready")
        runtime, operator = it.stack._children["runtime"].pid, it.operator.child
        assert operator is not None
        os.kill(runtime, signal.SIGSTOP)
        try:
            it.create("InferletRun", "timed", {"inferlet": "sleeping", "deadlineSeconds": 4})
            await asyncio.sleep(1.0)  # it has been asked to launch it
        finally:
            operator.send_signal(signal.SIGSTOP)
            os.kill(runtime, signal.SIGCONT)  # the program begins, and nobody is there to be told
        await asyncio.sleep(2.5)
        operator.send_signal(signal.SIGCONT)
        await it.until_condition("InferletRun", "timed", "Failed", reason="DeadlineExceeded")
        status = it.get("InferletRun", "timed")["status"]
        start, end = (datetime.fromisoformat(status[name]) for name in ("startTime", "completionTime"))
        assert (end - start).total_seconds() >= 4


async def test_whatever_a_program_says_is_in_its_status(api_server: ApiServer, namespace: str, run_dir: Path) -> None:
    async with live(api_server, namespace, run_dir) as it:
        for name, last in (("says", f"return {ODD!a}"), ("raises", f"raise ValueError({ODD!a})")):
            text = f"async def main():\n    print({ODD!a})\n    {last}\n"
            it.create("Inferlet", name, {"source": {"inline": text}, "description": ODD})
            it.create("InferletRun", name, {"inferlet": name})
        await it.until_condition("InferletRun", "says", "Succeeded")
        status = it.get("InferletRun", "says")["status"]
        assert (status["output"], status["result"]) == (f"{SHOWN}\n", SHOWN)
        await it.until_condition("InferletRun", "raises", "Failed")
        assert f"ValueError: {SHOWN}" in it.get("InferletRun", "raises")["status"]["error"]["traceback"]


async def test_what_a_failed_run_wrote_to_standard_error_is_in_its_status(
    api_server: ApiServer, namespace: str, run_dir: Path
) -> None:
    parse = "    print('before')\n    argparse.ArgumentParser().parse_args(['--what'])\n"
    text = f"import argparse\nasync def main():\n{parse}"
    async with live(api_server, namespace, run_dir) as it:
        it.create("Inferlet", "parses", {"source": {"inline": text}})
        it.create("InferletRun", "parses", {"inferlet": "parses"})
        await it.until_condition("InferletRun", "parses", "Failed")
        status = it.get("InferletRun", "parses")["status"]
        assert (status["output"], status["error"]["traceback"]) == ("before\n", "exit status 2")
        assert "unrecognized arguments: --what" in status["error"]["stderr"]


async def test_a_run_made_right_after_a_change_of_its_inferlet_runs_the_new_version(
    api_server: ApiServer, namespace: str, run_dir: Path
) -> None:
    """The run gets the new version, however long that takes to fetch."""
    texts = [f"import sys\nasync def main():\n    return 'program {n}, ' + sys.argv[1]\n".encode() for n in range(3)]
    with web_server({f"/{n}.py": text for n, text in enumerate(texts)}, after_s=0.5) as host:

        def spec(n: int) -> dict[str, Any]:
            url = {"url": f"http://{host}/{n}.py", "digest": f"sha256:{hashlib.sha256(texts[n]).hexdigest()}"}
            return {"source": {"url": url}, "args": [f"arguments {n}"]}

        async with live(
            api_server, namespace, run_dir, f"--source-hosts={host}", "--source-private-hosts=127.0.0.1"
        ) as it:
            it.create("Inferlet", "changed", spec(0))
            await it.until_condition("Inferlet", "changed", "Ready")
            for n in (1, 2):
                it.patch("Inferlet", "changed", {"spec": spec(n)})
                it.create("InferletRun", f"r{n}", {"inferlet": "changed"})
                await it.until_condition("InferletRun", f"r{n}", "Succeeded")
                assert it.get("InferletRun", f"r{n}")["status"]["result"] == f"program {n}, arguments {n}"
