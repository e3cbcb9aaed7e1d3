"""A peer that falls silent, as a machine does that is gone, is noticed; one that only has nothing to say is kept."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tartlet_common.rpc import endpoints
from tartlet_protos import engine_pb2_grpc

SHORT = {"PING_MS": 1000, "PING_TIMEOUT_MS": 1500}

CLIENT = """
import asyncio, sys
from tests.common.rpc.test_silence import shorten
from tartlet_common.rpc import endpoints
from tartlet_protos import engine_pb2_grpc, engine_pb2

async def main():
    shorten()
    async with endpoints.make_channel(sys.argv[1]) as channel:
        stream = engine_pb2_grpc.EngineStub(channel).Connect()
        await stream.write(engine_pb2.WorkerFrame(state="here"))
        print("connected", flush=True)
        await stream.read()

asyncio.run(main())
"""


def shorten() -> None:
    """Ask more often than anybody should in earnest."""
    replaced = {
        "grpc.keepalive_time_ms": SHORT["PING_MS"],
        "grpc.keepalive_timeout_ms": SHORT["PING_TIMEOUT_MS"],
        "grpc.http2.ping_timeout_ms": SHORT["PING_TIMEOUT_MS"],
        "grpc.http2.min_ping_interval_without_data_ms": SHORT["PING_MS"] // 2,
    }
    for name in ("_SERVER_OPTIONS", "_CHANNEL_OPTIONS"):
        options = [(key, replaced.get(key, value)) for key, value in getattr(endpoints, name)]
        setattr(endpoints, name, tuple(options))


class Streams(engine_pb2_grpc.EngineServicer):
    """Notes when a stream begins and when it ends."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()

    async def Connect(self, requests: Any, context: Any) -> None:  # type: ignore[override]
        try:
            await context.read()
            self.begun.set()
            await context.read()
        finally:
            self.ended.set()


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_SERVER_OPTIONS", "_CHANNEL_OPTIONS"):
        monkeypatch.setattr(endpoints, name, getattr(endpoints, name))  # put back afterwards
    shorten()


@pytest.mark.usefixtures("_short")
async def test_a_stopped_client_is_noticed_and_one_with_nothing_to_say_is_kept(run_dir: Path, repo: Path) -> None:
    streams = Streams()  # type: ignore[abstract]  # the rest is UNIMPLEMENTED
    address = f"unix:{run_dir}/s.sock"
    server = await endpoints.make_server(lambda s: engine_pb2_grpc.add_EngineServicer_to_server(streams, s), address)
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, address, cwd=repo, env={**os.environ, "PYTHONPATH": "."}
    )
    try:
        async with asyncio.timeout(60):
            await streams.begun.wait()
            await asyncio.sleep(6 * SHORT["PING_MS"] / 1000)  # pings alone, from both sides
            assert not streams.ended.is_set()
            child.send_signal(signal.SIGSTOP)
            await streams.ended.wait()
    finally:
        child.kill()
        await child.wait()
        await server.stop(None)


def test_both_ends_allow_what_the_other_asks() -> None:
    server, channel = dict(endpoints._SERVER_OPTIONS), dict(endpoints._CHANNEL_OPTIONS)
    assert server["grpc.http2.min_ping_interval_without_data_ms"] < channel["grpc.keepalive_time_ms"]
    for options in (server, channel):
        assert options["grpc.http2.max_pings_without_data"] == 0
