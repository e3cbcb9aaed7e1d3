"""Inferlets and runs with a real API server, control, runtime and engine."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import tartlet
from tartlet_common.errors.registry import ProgramFailed, UnknownPool
from tests.operator.api_server import ApiServer
from tests.operator.live.test_pools import serving
from tests.operator.operator_process import live

HELLO = """
import sys

async def main():
    print("hello", *sys.argv[1:])
    return "done"
"""
FAILING = """
async def main():
    print("so far \\x7f\\x85\\uffff")
    raise ValueError("on purpose \\x9b")
"""
SLEEPING = """
import asyncio

async def main():
    print("begin")
    await asyncio.sleep(600)
"""
WAITING = """
import inferlet

async def main():
    print("begin", flush=True)
    return await inferlet.receive()
"""


@contextmanager
def web_server(content: dict[str, bytes], *, after_s: float = 0.0) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = content.get(self.path)
            time.sleep(after_s)
            self.send_response(200 if data is not None else 404)
            self.end_headers()
            self.wfile.write(data or b"")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def test_inferlets_from_every_source(api_server: ApiServer, namespace: str, run_dir: Path) -> None:
    files = {"/hello.py": HELLO.encode()}
    digest = "sha256:" + hashlib.sha256(HELLO.encode()).hexdigest()
    with web_server(files) as host:
        async with live(
            api_server, namespace, run_dir, f"--source-hosts={host}", "--source-private-hosts=127.0.0.1"
        ) as it:
            it.create("Inferlet", "inline", {"source": {"inline": HELLO}, "description": "greets"})
            await it.until_condition("Inferlet", "inline", "Ready")
            assert it.get("Inferlet", "inline")["status"]["digest"] == digest
            runnable = it.condition("Inferlet", "inline", "Runnable")
            assert (runnable["status"], runnable["reason"]) == ("True", "ModelNotNamed")
            async with tartlet.AsyncClient(f"unix:{run_dir}/runtime.sock") as client:
                (entry,) = await client.catalogue(tenant=namespace)
            assert (entry.name, entry.description) == ("inline", "greets")

            it.create("Inferlet", "broken", {"source": {"inline": "async def main(:\n    pass\n"}})
            refused = await it.until_condition("Inferlet", "broken", "Ready", "False", "InvalidSource")
            assert "line 1" in refused["message"]
            assert it.condition("Inferlet", "broken", "Runnable")["status"] == "False"
            it.patch("Inferlet", "broken", {"spec": {"source": {"inline": HELLO}}})
            mended = await it.until_condition("Inferlet", "broken", "Ready")
            assert mended["observedGeneration"] == 2

            it.create("Inferlet", "mapped", {"source": {"configMap": {"name": "programs", "key": "hello.py"}}})
            waiting = await it.until_condition("Inferlet", "mapped", "Ready", "False", "SourceMissing")
            assert "spec.source.configMap" in waiting["message"]
            config_map = {"metadata": {"name": "programs"}, "data": {"other.py": "pass"}}
            it.core("POST", "api/v1", "configmaps", config_map)
            await it.until(lambda: "hello.py" in it.condition("Inferlet", "mapped", "Ready")["message"])
            it.core(
                "PATCH", "api/v1", "configmaps/programs", {"data": {"hello.py": HELLO}}, "application/merge-patch+json"
            )
            await it.until_condition("Inferlet", "mapped", "Ready")

            url = {"url": f"http://{host}/hello.py", "digest": digest}
            it.create("Inferlet", "fetched", {"source": {"url": url}})
            await it.until_condition("Inferlet", "fetched", "Ready")
            it.create("Inferlet", "forged", {"source": {"url": {**url, "digest": "sha256:" + "0" * 64}}})
            forged = await it.until_condition("Inferlet", "forged", "Ready", "False", "DigestMismatch")
            assert digest in forged["message"]
            it.create(
                "Inferlet",
                "lost",
                {"source": {"url": {**url, "url": f"http://{host}/none.py", "digest": "sha256:" + "1" * 64}}},
            )
            await it.until_condition("Inferlet", "lost", "Ready", "False", "FetchFailed")
            it.create(
                "Inferlet",
                "foreign",
                {"source": {"url": {"url": "http://192.0.2.1/x", "digest": "sha256:" + "2" * 64}}},
            )
            foreign = await it.until_condition("Inferlet", "foreign", "Ready", "False", "HostNotAllowed")
            assert "source_hosts" in foreign["message"]

            it.delete("Inferlet", "inline")
            async with tartlet.AsyncClient(f"unix:{run_dir}/runtime.sock") as client:
                names = {e.name for e in await client.catalogue(tenant=namespace)}
                while "inline" in names:
                    names = {e.name for e in await client.catalogue(tenant=namespace)}
            assert names == {"broken", "mapped", "fetched"}
            assert "InferletReady" in it.events("mapped")
            assert "InferletRefused" in it.events("forged")


async def test_without_its_pool_a_program_is_launched_on_no_other(
    api_server: ApiServer, namespace: str, run_dir: Path
) -> None:
    async with live(api_server, namespace, run_dir) as it:
        it.create("Inferlet", "astray", {"source": {"inline": HELLO}, "pool": "misspelt"})
        await it.until_condition("Inferlet", "astray", "Ready")
        async with tartlet.AsyncClient(f"unix:{run_dir}/runtime.sock") as client:
            with pytest.raises(UnknownPool, match="misspelt"):
                await client.launch(spec=tartlet.LaunchSpec(inferlet="astray", tenant=namespace))


async def test_runs_from_launch_to_deletion(api_server: ApiServer, namespace: str, run_dir: Path) -> None:
    async with live(api_server, namespace, run_dir) as it:
        it.create("InferletRun", "early", {"inferlet": "hello"})
        waiting = await it.until_condition("InferletRun", "early", "Succeeded", "Unknown", "InferletNotFound")
        assert "spec.inferlet" in waiting["message"]
        it.create("Inferlet", "hello", {"source": {"inline": HELLO}, "args": ["you"]})
        await it.until_condition("InferletRun", "early", "Succeeded")
        status = it.get("InferletRun", "early")["status"]
        assert (status["phase"], status["output"], status["result"]) == ("Succeeded", "hello you\n", "done")
        assert (status["attempts"], status["outputTruncated"]) == (1, False)
        assert status["startTime"] <= status["completionTime"]
        assert it.condition("InferletRun", "early", "Failed")["status"] == "False"

        it.create("InferletRun", "own-args", {"inferlet": "hello", "args": ["a", "b"], "ttlSecondsAfterFinished": 3})
        await it.until_condition("InferletRun", "own-args", "Succeeded")
        assert it.get("InferletRun", "own-args")["status"]["output"] == "hello a b\n"
        await it.until(lambda: not it.exists("InferletRun", "own-args"))

        it.create("Inferlet", "failing", {"source": {"inline": FAILING}})
        it.create("InferletRun", "fails", {"inferlet": "failing", "retries": 1})
        failed = await it.until_condition("InferletRun", "fails", "Failed")
        assert failed["reason"] == "ProgramFailed"
        status = it.get("InferletRun", "fails")["status"]
        assert (status["attempts"], status["output"]) == (2, "so far �\x85�\n"), "kubectl shows no other as YAML"
        assert (status["error"]["name"], status["error"]["number"]) == ("ProgramFailed", 201)
        assert "line 4, in main\n" in status["error"]["traceback"]
        assert "ValueError: on purpose �" in status["error"]["traceback"]
        assert {"RunLaunched", "RunRetried", "RunFailed"} <= set(it.events("fails"))
        it.patch("InferletRun", "fails", {"metadata": {"labels": {"looked": "again"}}})
        labelled = it.get("InferletRun", "fails")["metadata"]["resourceVersion"]
        await asyncio.sleep(1.0)
        assert it.get("InferletRun", "fails")["metadata"]["resourceVersion"] == labelled, "what is told stays as it is"

        it.create("Inferlet", "sleeping", {"source": {"inline": SLEEPING}})
        it.create("InferletRun", "late", {"inferlet": "sleeping", "deadlineSeconds": 2, "retries": 3})
        failed = await it.until_condition("InferletRun", "late", "Failed")
        assert failed["reason"] == "DeadlineExceeded"
        assert it.get("InferletRun", "late")["status"]["attempts"] == 1

        it.create("InferletRun", "unwanted", {"inferlet": "sleeping"})
        await it.until(lambda: it.get("InferletRun", "unwanted").get("status", {}).get("output") == "begin\n")
        program = it.get("InferletRun", "unwanted")["status"]["programId"]
        it.delete("InferletRun", "unwanted")
        async with tartlet.AsyncClient(f"unix:{run_dir}/runtime.sock") as client:
            ended = await (await client.attach(program)).wait()
        assert isinstance(ended.error, tartlet.TartletError)
        assert ended.error.name == "ProgramKilled"


SECRET = "prescription-4711"
TELLING = f"""
import asyncio, sys

async def main():
    print("{SECRET}", flush=True)
    print("{SECRET}", file=sys.stderr, flush=True)
    await asyncio.sleep(2.5)
    if sys.argv[1:]:
        raise ValueError("{SECRET}")
    return "{SECRET}"
"""


async def test_a_run_with_output_none_leaves_no_text_in_the_cluster_and_says_what_failed(
    api_server: ApiServer, namespace: str, run_dir: Path
) -> None:
    async with live(api_server, namespace, run_dir, "--run-ttl-s=-1") as it:
        it.create("Inferlet", "telling", {"source": {"inline": TELLING}})
        it.create("Inferlet", "silent", {"source": {"inline": TELLING}, "output": "none"})
        runs: dict[str, dict[str, Any]] = {
            "by-run": {"inferlet": "telling", "output": "none"},
            "by-run-fails": {"inferlet": "telling", "output": "none", "args": ["x"], "retries": 1},
            "by-inferlet": {"inferlet": "silent", "output": "status"},
            "by-inferlet-fails": {"inferlet": "silent", "args": ["x"]},
        }
        for name, spec in runs.items():
            it.create("InferletRun", name, spec)
        it.create("InferletRun", "told", {"inferlet": "telling"})
        for name in runs:
            await it.until_condition("InferletRun", name, "Failed" if "fails" in name else "Succeeded")
            status = it.get("InferletRun", name)["status"]
            events = [e for e in it.core("GET", "api/v1", "events")["items"] if e["involvedObject"]["name"] == name]
            assert SECRET not in json.dumps([status, events]), name
            assert (status["output"], status["outputKept"], status.get("result")) == ("", False, None)
            if "fails" in name:
                error = status["error"]
                assert (error["name"], error["number"]) == ("ProgramFailed", 201)
                assert error["remedy"] != ProgramFailed.remedy, "no traceback was kept that it could speak of"
                assert (error["stderr"], SECRET in error["traceback"]) == ("", False)
                assert it.condition("InferletRun", name, "Failed")["reason"] == "ProgramFailed"
        await it.until_condition("InferletRun", "told", "Succeeded")
        told = it.get("InferletRun", "told")["status"]
        assert (told["output"], told["result"], told["outputKept"]) == (f"{SECRET}\n", SECRET, True)


async def test_ended_runs_that_name_no_time_go_after_the_operators(
    api_server: ApiServer, namespace: str, run_dir: Path
) -> None:
    async with live(api_server, namespace, run_dir, "--run-ttl-s=2") as it:
        it.create("Inferlet", "hello", {"source": {"inline": HELLO}})
        for name, spec in {"unset": {}, "stays": {"ttlSecondsAfterFinished": 3600}}.items():
            it.create("InferletRun", name, {"inferlet": "hello", **spec})
        await it.until_condition("InferletRun", "stays", "Succeeded")
        await it.until(lambda: not it.exists("InferletRun", "unset"))
        assert it.exists("InferletRun", "stays")


async def test_an_operator_that_dies_loses_nothing_and_launches_nothing_twice(
    api_server: ApiServer, namespace: str, run_dir: Path
) -> None:
    async with live(api_server, namespace, run_dir) as it:
        it.create("Inferlet", "waits", {"source": {"inline": WAITING}})
        it.create("InferletRun", "r", {"inferlet": "waits"})
        await it.until(lambda: it.get("InferletRun", "r").get("status", {}).get("output") == "begin\n")
        before = it.get("InferletRun", "r")["status"]["programId"]
        it.operator.kill()
        async with tartlet.AsyncClient(f"unix:{run_dir}/runtime.sock") as client:
            await client.send(before, "over")
            await (await client.attach(before)).wait()
            it.operator.start()
            await it.until_condition("InferletRun", "r", "Succeeded")
            programs = await client.list(ended=True, tenant=namespace)
        status = it.get("InferletRun", "r")["status"]
        assert (status["programId"], status["attempts"], status["result"]) == (before, 1, "over")
        assert [p.program_id for p in programs] == [before]


async def test_a_restart_writes_nothing_in_a_settled_namespace(
    api_server: ApiServer, namespace: str, run_dir: Path
) -> None:
    async with live(api_server, namespace, run_dir) as it:
        await serving(it)
        names = [f"i{n}" for n in range(30)]
        for n, name in enumerate(names):
            it.create("Inferlet", name, {"source": {"inline": f"{HELLO}# {n}\n"}, "pool": "pool"})
        await it.until(lambda: all(it.condition("Inferlet", n, "Runnable")["status"] == "True" for n in names))
        versions = {n: it.get("Inferlet", n)["metadata"]["resourceVersion"] for n in names}
        managed = it.get("Inferlet", "i0")["metadata"]["managedFields"]
        assert [(m["manager"], m["operation"]) for m in managed if m.get("subresource")] == [
            ("tartlet-operator", "Apply")
        ]
        assert "annotations" not in it.get("Inferlet", "i0")["metadata"]
        asked_s = time.monotonic()
        assert it.operator.stop() == 0
        assert time.monotonic() - asked_s < 3.0  # another could lead: nobody waits for what only waits
        it.operator.start()
        it.create("Inferlet", "last", {"source": {"inline": HELLO}})
        await it.until_condition("Inferlet", "last", "Ready")  # it came after all the others
        assert {n: it.get("Inferlet", n)["metadata"]["resourceVersion"] for n in names} == versions


async def test_an_edited_status_is_restored_and_a_restarted_controls_catalogue_is_refilled(
    api_server: ApiServer, namespace: str, run_dir: Path
) -> None:
    async with live(api_server, namespace, run_dir) as it:
        it.create("Inferlet", "hello", {"source": {"inline": HELLO}})
        await it.until_condition("Inferlet", "hello", "Ready")
        good = it.get("Inferlet", "hello")["status"]
        it.patch("Inferlet", "hello", {"status": {"digest": "sha256:lie", "conditions": []}}, "/status")
        await it.until(lambda: it.get("Inferlet", "hello")["status"]["digest"] == good["digest"])
        await it.until_condition("Inferlet", "hello", "Ready")
        it.stack._children["control"].kill()
        async with tartlet.AsyncClient(f"unix:{run_dir}/runtime.sock") as client:
            await it.stack.until_serving("control")
            it.create("InferletRun", "after", {"inferlet": "hello", "args": ["again"]})
            await it.until_condition("InferletRun", "after", "Succeeded", timeout_s=40)
            assert [e.name for e in await client.catalogue(tenant=namespace)] == ["hello"]
        assert "CatalogueRebuilt" in it.events("hello")
