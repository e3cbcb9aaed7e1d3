"""Native programs use the network, processes and threads as any Python does, beside the calls to the host."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any

import grpc
import pytest

from tests.e2e.conftest import server
from tests.e2e.serving import Serving, client_of, command, environment, tartlet_cli

__all__ = ["server"]
NETWORKS = Path(__file__).parent / "networks.py"
pytestmark = pytest.mark.timeout(180)


class _Ping(StreamRequestHandler):
    def handle(self) -> None:
        self.rfile.readline()
        self.wfile.write(b"pong\n")


class _Http(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = f"got {self.path}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


class _Echo(grpc.GenericRpcHandler):
    def service(self, details: grpc.HandlerCallDetails) -> Any:
        return grpc.unary_unary_rpc_method_handler(lambda request, _: request)


@pytest.fixture(scope="module")
def ports() -> Iterator[dict[str, str]]:
    """Real servers on loopback: of lines, of HTTP and of gRPC."""
    rpc = grpc.server(futures.ThreadPoolExecutor(2), handlers=[_Echo()])
    rpc_port = rpc.add_insecure_port("127.0.0.1:0")
    rpc.start()
    with ThreadingTCPServer(("127.0.0.1", 0), _Ping) as lines, ThreadingHTTPServer(("127.0.0.1", 0), _Http) as http:
        lines.daemon_threads = True
        for each in (lines, http):
            threading.Thread(target=each.serve_forever, daemon=True).start()
        yield {
            "lines": str(lines.server_address[1]),
            "http": f"http://127.0.0.1:{http.server_address[1]}",
            "grpc": f"127.0.0.1:{rpc_port}",
        }
        for each in (lines, http):
            each.shutdown()
    rpc.stop(None)


RESULTS = {
    "serves": ("", "SERVED"),
    "processes": ("", "cba 0"),
    "httpx_client": ("http", "got /0 got /1 got /2"),
    "aiohttp_client": ("http", "got /aio"),
    "grpc_client": ("grpc", "by gRPC"),
    "threads": ("lines", "pong 4 RuntimeError pong"),
}


@pytest.mark.parametrize("how", list(RESULTS))
def test_a_native_program_uses_what_python_has(server: Serving, ports: dict[str, str], how: str) -> None:
    given, result = RESULTS[how]
    where = (ports | {"": ""})[given]
    program = str(NETWORKS)
    ran = tartlet_cli(server.run_dir, "run", "--server", "local", "--quiet", "--native", program, how, where)
    assert (ran.returncode, ran.stdout) == (0, f"{result}\n"), ran.stderr


def test_a_native_program_is_a_client_of_its_own_server(run_dir: Path) -> None:
    program = str(NETWORKS)
    ran = tartlet_cli(run_dir, "run", "--engine", "fake", "--quiet", "--native", program, "tartlet_client")
    assert (ran.returncode, ran.stdout) == (0, "inner\n"), ran.stderr


async def test_sockets_answers_and_messages_come_side_by_side(server: Serving, ports: dict[str, str]) -> None:
    line = command("run", "--server", "local", "--json", "--native", str(NETWORKS))
    process = await asyncio.create_subprocess_exec(
        *line, "streams", ports["lines"], env=environment(server.run_dir), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    events = []
    async with client_of(server) as client:
        async for text in process.stdout:
            events.append(json.loads(text))
            if events[-1]["event"] == "message":
                await client.send(events[-1]["program_id"], "told")
    assert await process.wait() == 0
    assert events[-1]["result"] == "pong 8 pong told", events


async def test_a_program_that_waits_for_a_socket_alone_can_be_killed(server: Serving) -> None:
    program = str(NETWORKS)
    line = command("run", "--server", "local", "--json", "--native", program, "silence")
    process = await asyncio.create_subprocess_exec(
        *line, env=environment(server.run_dir), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with client_of(server) as client:
        first = json.loads(await process.stdout.readline())
        while first["event"] != "message":  # it is about to wait
            first = json.loads(await process.stdout.readline())
        await client.kill(first["program_id"])
    rest, _ = await process.communicate()
    assert process.returncode == 1
    assert json.loads(rest.splitlines()[-1])["error"]["name"] == "ProgramKilled"


def test_a_native_program_without_sockets_replays(server: Serving) -> None:
    program = str(NETWORKS)
    ran = tartlet_cli(server.run_dir, "run", "--server", "local", "--native", "--json", program, "plain")
    assert ran.returncode == 1  # the journal of a failed run is kept
    program_id = json.loads(ran.stdout.splitlines()[-1])["program_id"]
    journals = str(server.run_dir / "journals")
    again = tartlet_cli(server.run_dir, "replay", program_id, "--journals", journals, "--native", "--no-debugger")
    assert "ValueError: 16 tokens, as wanted" in again.stderr
    assert "Diverged" not in again.stderr


def test_a_wait_that_nothing_can_end_is_an_error(server: Serving) -> None:
    program = str(NETWORKS)
    ran = tartlet_cli(server.run_dir, "run", "--server", "local", "--quiet", "--native", program, "waits")
    assert ran.returncode == 1
    assert "NothingToWaitFor" in ran.stderr
