"""One program is one trace across client, runtime, control and worker; without an endpoint nothing is exported."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import tartlet
from tartlet_common.telemetry import names
from tests.e2e.receiver import Receiver, attributes, receiving
from tests.e2e.serving import PROGRAMS, Serving, client_of, out, program, serving, tartlet_cli
from tests.gateway.conftest import free_port

PROMPT = "a secret prompt"
ROLES = ("runtime", "control", "worker")


@pytest.fixture
def receiver() -> Iterator[tuple[Receiver, str]]:
    """A running OTLP receiver and its endpoint."""
    with receiving() as running:
        yield running


def test_one_trace_runs_through_all_four_processes(run_dir: Path, receiver: Any) -> None:
    kept, endpoint = receiver
    args = ["run", "--engine", "fake", str(PROGRAMS / "sampled.py"), PROMPT, "0", "0", "1", "1"]
    result = tartlet_cli(run_dir, *args, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint)
    assert result.returncode == 0, result.stderr
    services: dict[bytes, set[str]] = {}
    for service, span in kept.spans:
        services.setdefault(span.trace_id, set()).add(service)
    everywhere = {"tartlet-client", "tartlet-runtime", "tartlet-control", "tartlet-worker"}
    assert everywhere in services.values(), {service: span.name for service, span in kept.spans}
    ids = {span.span_id for _, span in kept.spans}
    assert all(not span.parent_span_id or span.parent_span_id in ids for _, span in kept.spans)
    assert len(kept.spans) < 100, "spans are per program, call and step, never per token"
    assert "tartlet-control" in kept.metrics
    assert {names.METRIC_AGENT_DURATION, names.METRIC_TOKEN_USAGE} <= kept.metrics["tartlet-runtime"]
    (agent,) = [attributes(span) for _, span in kept.spans if span.name == "invoke_agent"]
    assert agent["gen_ai.request.model"] in kept.models, "the default model has a name"
    assert agent["gen_ai.request.model"] != ""
    assert PROMPT.encode() not in b"".join(kept.raw)


async def _told(server: Serving) -> tuple[str, str]:
    """Returns the output and the error of a program that is given a secret."""
    async with client_of(server) as client:
        run = await client.run(spec=tartlet.LaunchSpec(source=program("tells"), args=[PROMPT]))
        sent = "".join([event.text async for event in run if isinstance(event, tartlet.Message)])
    assert run.ended is not None
    return sent, str(run.ended.error)


def test_a_chat_continues_its_clients_trace_and_logs_name_it(run_dir: Path, receiver: Any) -> None:
    kept, endpoint = receiver
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    sent = {"traceparent": f"00-{trace}-{parent}-01"}
    port, keys = free_port(), run_dir / "keys.json"
    sent["authorization"] = f"Bearer {out(run_dir, 'keys', 'create', '--tenant', 'a', '--file', str(keys)).strip()}"
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "TARTLET_GATEWAY_KEYS": str(keys)}
    with serving(run_dir, http=f"127.0.0.1:{port}", **env) as server:
        body = {"model": "fake", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 2}
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        assert httpx.post(url, json=body, headers=sent, timeout=60).status_code == 200
        lost = httpx.post(url, json=body | {"model": "none"}, headers={**sent, "traceparent": "x"}, timeout=60)
        assert lost.status_code == 404
    spans = {span.span_id: (service, span) for service, span in kept.spans if span.trace_id.hex() == trace}
    assert {service for service, _ in spans.values()} == {f"tartlet-{role}" for role in ("gateway", *ROLES)}
    (request,) = [span for _, span in spans.values() if span.parent_span_id.hex() == parent]
    assert request.name == "POST /v1/chat/completions"
    assert attributes(request)["gen_ai.request.model"]
    assert attributes(request)["tartlet.program.id"]
    assert all(span is request or span.parent_span_id in spans for _, span in spans.values())
    others = [span for service, span in kept.spans if service == "tartlet-gateway" and span.trace_id.hex() != trace]
    assert [attributes(span)["http.response.status_code"] for span in others if span.name == request.name] == [404]
    logs = "".join(log.read_text() for log in (server.log, *run_dir.rglob("*.log")))
    assert f'"trace": "{trace}"' in logs, "the audit log names the trace"
    assert PROMPT.encode() not in b"".join(kept.raw)


def test_no_prompt_no_output_and_no_failure_s_text_is_logged_or_exported(run_dir: Path, receiver: Any) -> None:
    kept, endpoint = receiver
    settings = {f"TARTLET_{role.upper()}_LOG_LEVEL": "debug" for role in ROLES}
    with serving(run_dir, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, **settings) as server:
        sent, error = asyncio.run(_told(server))
    logs = {log.name: log.read_bytes() for log in (server.log, *run_dir.rglob("*.log"))}
    assert "secret failure" in error
    assert len(sent) >= 8
    assert {f"{role}.log" for role in ROLES} <= set(logs)
    assert all(logs.values())
    assert len(kept.raw) > 3
    for told in (*logs.values(), *kept.raw):
        assert b"secret" not in told
        assert sent.encode() not in told


def test_an_endpoint_that_is_not_there_changes_nothing_for_the_program(run_dir: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
    args = ["run", "--engine", "fake", str(PROGRAMS / "sampled.py"), "x", "0", "0", "1", "1"]
    assert tartlet_cli(run_dir, *args, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint).returncode == 0
