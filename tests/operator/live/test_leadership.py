"""Leadership, probes and a restarted API server: what the operator does as a process."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tartlet_common.errors import exit_codes
from tests.operator.api_server import ApiServer, Refused
from tests.operator.operator_process import OperatorProcess, live

MERGE = "application/merge-patch+json"
FAKE = {"model": {"name": "fake"}, "engine": {"backend": "Fake"}}


async def test_one_replica_leads_and_the_other_takes_over(api_server: ApiServer, namespace: str, run_dir: Path) -> None:
    second = OperatorProcess(api_server, namespace, run_dir, name="second")
    async with live(api_server, namespace, run_dir) as it:
        lease = "apis/coordination.k8s.io/v1"

        def holder() -> str:
            try:
                spec = it.core("GET", lease, "leases/tartlet-operator")["spec"]
            except Refused:
                return ""
            return str(spec.get("holderIdentity", ""))

        await it.until(lambda: holder() == "op")
        second.start()
        try:
            await it.until(lambda: "waits for Lease" in second.log)
            it.create("EnginePool", "pool", FAKE)
            await it.until_condition("EnginePool", "pool", "Ready", "False")
            it.operator.kill()
            took_s = await it.until(lambda: holder() == "second")
            assert took_s < 3.0 + 1.0  # the Lease's time; the other is a process that has to be scheduled
            it.create("EnginePool", "later", FAKE)
            await it.until_condition("EnginePool", "later", "Ready", "False")

            # given back at a clean end, so nobody has to wait
            it.operator.start()
            await it.until(lambda: it.operator.log.count("waits for Lease") == 2)
            assert second.stop() == 0
            assert await it.until(lambda: holder() == "op") < 2.0

            # taken away: the leader ends, it doesn't go on beside another
            it.core("PATCH", lease, "leases/tartlet-operator", {"spec": {"holderIdentity": "thief"}}, MERGE)
            child = it.operator.child
            assert child is not None
            assert await asyncio.to_thread(child.wait, 10) == exit_codes.SYSTEM
            assert "another replica took it" in it.operator.log
        finally:
            if second.child is not None and second.child.poll() is None:
                second.stop()


async def test_probes_and_metrics(api_server: ApiServer, namespace: str, run_dir: Path) -> None:
    async with live(api_server, namespace, run_dir) as it:
        it.create("EnginePool", "pool", FAKE)
        await it.until_condition("EnginePool", "pool", "Ready", "False")
        assert it.operator.get("livez") == "ok\n"
        assert it.operator.get("readyz") == "ok\n"
        text = it.operator.get("metrics")
        assert 'tartlet_operator_objects{kind="EnginePool",state="not_ready"} 1.0' in _plain(text)
        assert "tartlet_operator_reconcile_duration_seconds_bucket" in text
        assert "tartlet_operator_leading 1.0" in _plain(text)
        (age,) = [line for line in _plain(text).splitlines() if line.startswith("tartlet_operator_watch_age")]
        assert float(age.split()[-1]) < 5.0


def _plain(text: str) -> str:
    """Return samples without the labels that the exporter adds to each."""
    import re

    return re.sub(r'otel_scope_\w+="[^"]*",?|\{\}|,(?=\})', "", text).replace("{}", "")


async def test_the_api_server_may_restart(api_server: ApiServer, namespace: str, run_dir: Path) -> None:
    async with live(api_server, namespace, run_dir, "--lease-duration-s=60") as it:
        it.create("EnginePool", "pool", FAKE)
        await it.until_condition("EnginePool", "pool", "Ready", "False")
        api_server.stop_api()
        await asyncio.to_thread(api_server.start_api)
        started = time.monotonic()
        it.create("EnginePool", "after", FAKE)
        await it.until_condition("EnginePool", "after", "Ready", "False", timeout_s=40)
        assert time.monotonic() - started < 40
        assert it.operator.child is not None
        assert it.operator.child.poll() is None, "the same process"
