"""A chat's spans in a real OpenTelemetry Collector: one trace from the client's `traceparent` to the batch."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tartlet_common.telemetry import names
from tests.clients.environments import go_of
from tests.e2e.serving import serving
from tests.gateway.conftest import Gateway, free_port
from tests.run_directory import run_directory

pytestmark = [pytest.mark.beyond_gate, pytest.mark.timeout(2400)]
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PROMPT = "a secret prompt"
CONFIG = """
receivers: {otlp: {protocols: {grpc: {endpoint: "127.0.0.1:%d"}}}}
exporters: {file: {path: "%s", flush_interval: 100ms}}
service:
  telemetry: {metrics: {level: none}}
  pipelines:
    traces: {receivers: [otlp], exporters: [file]}
    metrics: {receivers: [otlp], exporters: [file]}
"""


@contextlib.contextmanager
def collector(directory: Path) -> Iterator[tuple[str, Path]]:
    """Runs a Collector; yields its endpoint and the file into which it writes."""
    program, port = go_of("collector"), free_port()
    written, config = directory / "collected.jsonl", directory / "collector.yaml"
    config.write_text(CONFIG % (port, written))
    with (directory / "collector.log").open("wb") as log:
        process = subprocess.Popen([program, "--config", f"file:{config}"], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while True:
            assert process.poll() is None, (directory / "collector.log").read_text()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}", written
    finally:
        process.terminate()
        process.wait(30)


def spans_in(written: Path) -> list[dict[str, Any]]:
    """The spans that the Collector has, with their service as `service` and their attributes as a dictionary."""
    spans = []
    for line in written.read_text().splitlines():
        for resource in json.loads(line).get("resourceSpans", ()):
            service = attributes(resource["resource"])["service.name"]
            for scope in resource["scopeSpans"]:
                spans += [s | {"service": service, "attributes": attributes(s)} for s in scope["spans"]]
    return spans


def attributes(told: dict[str, Any]) -> dict[str, Any]:
    return {a["key"]: next(iter(a["value"].values())) for a in told.get("attributes", ())}


def test_a_chat_is_one_trace_in_a_collector_from_the_clients_span_to_the_batch(tmp_path: Path) -> None:
    port = free_port()
    with collector(tmp_path) as (endpoint, written):
        with (
            run_directory() as directory,
            serving(directory, http=f"127.0.0.1:{port}", OTEL_EXPORTER_OTLP_ENDPOINT=endpoint) as server,
            Gateway(server, port).client() as http,
        ):
            body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 4}
            reply = http.post("/v1/chat/completions", json=body, headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
            assert reply.status_code == 200, reply.text
        # processes that end send what they have
        deadline = time.monotonic() + 30
        wanted = {f"tartlet-{role}" for role in ("gateway", "runtime", "control", "worker")}
        while not wanted <= {s["service"] for s in spans_in(written) if s["traceId"] == TRACE}:
            assert time.monotonic() < deadline, written.read_text()[-2000:]
            time.sleep(0.1)
        time.sleep(1)
    spans = {s["spanId"]: s for s in spans_in(written) if s["traceId"] == TRACE}
    (request,) = [s for s in spans.values() if s["parentSpanId"] == PARENT]
    assert request["name"] == "POST /v1/chat/completions"
    assert request["attributes"][names.ATTR_HTTP_STATUS] == "200"
    (agent,) = [s for s in spans.values() if s["name"] == "invoke_agent"]
    assert {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "tartlet",
        "gen_ai.usage.output_tokens": "4",
    }.items() <= agent["attributes"].items()
    assert agent["attributes"]["gen_ai.request.model"]
    batch = next(s for s in spans.values() if s["service"] == "tartlet-worker")
    way = [batch["name"]]
    while batch["parentSpanId"] != PARENT:
        batch = spans[batch["parentSpanId"]]
        way.append(batch["name"])
    assert way == [
        names.SPAN_ENGINE_STEP,
        names.SPAN_BATCH,
        names.SPAN_CONTROL_PROGRAM,
        names.SPAN_PROGRAM,
        names.SPAN_CLIENT_LAUNCH,
        request["name"],
    ]
    assert PROMPT not in written.read_text()
    assert "gen_ai.invoke_agent.duration" in written.read_text()
