"""Every panel of the dashboards and every alert finds its metrics in a real Prometheus that scraped a real stack."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import trustme
import yaml

import tartlet
from tartlet.local import LocalStack, StackConfig
from tests.chart.test_alerts import alerts
from tests.lacking import lacking
from tests.operator.api_server import ApiServer, _free_port
from tests.operator.operator_process import ENGINE, Live, OperatorProcess
from tools.dashboards.board import expression
from tools.gen_dashboards import BOARDS

SCRAPE_S: Final = 1
RATE: Final = "30s"
LOAD_S: Final = 4.0
SAMPLES: Final = Path(__file__).parents[2] / "e2e" / "programs" / "sampled.py"
WORDS: Final = re.compile(r"\b(?:tartlet|gen_ai|http)_[a-z_]+\b|\bup\b")
LABELS: Final = re.compile(r"\{[^{}]*\}|by \([^()]*\)")


class Prometheus:
    """Debian's Prometheus, which scrapes ports of the loopback."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/api/v1"

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer."""
        with urllib.request.urlopen(f"{self.url}/{path}?{urllib.parse.urlencode(parameters)}", timeout=10) as reply:
            told = json.load(reply)
        assert told["status"] == "success"
        return told["data"]

    def until_up(self, jobs: int) -> None:
        """Wait until so many targets were scraped."""
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                if sum(float(s["value"][1]) for s in self.ask("query", query="up")["result"]) == jobs:
                    return
            assert time.monotonic() < deadline, "Prometheus doesn't reach the roles"
            time.sleep(0.2)


@contextlib.contextmanager
def prometheus(directory: Path, targets: dict[str, int]) -> Iterator[Prometheus]:
    """Run Prometheus on these health ports, by role, with the labels that the chart's PodMonitor gives."""
    binary = shutil.which("prometheus")
    if binary is None:
        lacking("no prometheus: apt-get install prometheus")
    labelled = [
        {
            "targets": [f"127.0.0.1:{port}"],
            "labels": {"namespace": "prod", "pod": f"tartlet-{role}-0", "app_kubernetes_io_component": role},
        }
        for role, port in targets.items()
    ]
    config = {
        "global": {"scrape_interval": f"{SCRAPE_S}s"},
        "scrape_configs": [{"job_name": "tartlet", "static_configs": labelled}],
    }
    (directory / "prometheus.yaml").write_text(yaml.safe_dump(config))
    port = _free_port()
    flags = [f"--config.file={directory}/prometheus.yaml", f"--storage.tsdb.path={directory}/tsdb"]
    with (directory / "prometheus.log").open("wb") as log:
        child = subprocess.Popen([binary, *flags, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    try:
        yield Prometheus(port)
    finally:
        child.terminate()
        child.wait(20)


@contextlib.asynccontextmanager
async def measured(
    server: ApiServer, namespace: str, run_dir: Path, ports: dict[str, int], http: int
) -> AsyncIterator[Live]:
    """A stack with a gateway over HTTPS and an operator, all of which serve their metrics."""
    issued = trustme.CA().issue_cert("localhost")
    key, certificate = run_dir / "https.key", run_dir / "https.crt"
    issued.private_key_pem.write_to_path(key)
    issued.cert_chain_pems[0].write_to_path(certificate)
    flags = {role: [f"--health-address=127.0.0.1:{port}"] for role, port in ports.items() if role != "operator"}
    flags["gateway"] += [f"--http-certificate={certificate}", f"--http-key={key}"]
    flags["worker"] = [f"--engine-id={ENGINE}"]
    address = f"127.0.0.1:{http}"
    config = StackConfig(engine="fake", directory=run_dir, flags=flags, http=address, start_timeout_s=60)
    async with LocalStack(config) as stack:
        operator = OperatorProcess(server, namespace, run_dir, health_port=ports["operator"])
        operator.start()
        try:
            yield Live(server, namespace, run_dir, operator, stack)
        finally:
            operator.stop()


def chat(port: int) -> None:
    """Ask the gateway for a few tokens."""
    body = {"model": "fake", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
    request = urllib.request.Request(
        f"https://localhost:{port}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=20, context=ssl._create_unverified_context()).read()


async def load(it: Live, http: int) -> None:
    """Run programs in every way, some of which fail, for longer than a few scrapes."""
    source = SAMPLES.read_text()
    it.create("Inferlet", "sampled", {"source": {"inline": source}})
    it.create("EnginePool", "absent", {"model": {"name": "absent"}, "engine": {"backend": "Fake"}})
    it.create("Inferlet", "broken", {"source": {"inline": "this is no Python"}})
    it.create("InferletRun", "waits", {"inferlet": "sampled", "pool": "absent"})
    async with tartlet.AsyncClient(f"unix:{it.run_dir}/runtime.sock") as client:
        end = time.monotonic() + LOAD_S
        while time.monotonic() < end:
            spec = tartlet.LaunchSpec(tartlet.Source.python(source), args=["hello", "0", "0", "1", "8"])
            assert (await (await client.run(spec=spec)).wait()).error is None
            wrong = tartlet.LaunchSpec(tartlet.Source.python(source), args=["hello"])
            assert (await (await client.run(spec=wrong)).wait()).error is not None
            await asyncio.to_thread(chat, http)
            await asyncio.sleep(0.2)


def asked(expr: str) -> str:
    """Return an expression with Grafana's variables replaced."""
    return expr.replace("$namespace", "prod").replace("$__rate_interval", RATE)


async def test_every_panel_has_data_and_every_alert_its_metrics(
    api_server: ApiServer, namespace: str, run_dir: Path, tmp_path: Path
) -> None:
    ports = {role: _free_port() for role in ("control", "runtime", "gateway", "operator")}
    http = _free_port()
    async with measured(api_server, namespace, run_dir, ports, http) as it:
        with prometheus(tmp_path, ports) as prom:
            await asyncio.to_thread(prom.until_up, len(ports))
            await load(it, http)
            queries = {
                (board.uid, panel.title, expression(query))
                for board in BOARDS
                for panel in board.panels
                for query in panel.queries
            }
            empty = set(queries)
            deadline = time.monotonic() + 30
            while empty and time.monotonic() < deadline:
                await asyncio.sleep(2 * SCRAPE_S)
                for each in sorted(empty):
                    if (await asyncio.to_thread(prom.ask, "query", query=asked(each[2])))["result"]:
                        empty.discard(each)
            assert empty == set()
            known = set(await asyncio.to_thread(prom.ask, "label/__name__/values"))
    wanted = {word for rule in alerts().values() for word in WORDS.findall(LABELS.sub("", str(rule["expr"])))}
    assert len(wanted) >= 12
    assert wanted - known == set()
