"""gRPC reads how it shall serve sockets when it is imported: each process must have said so by then."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CHOICE = "-event_engine_client,-event_engine_listener"
LOOK = """
import os, runpy, sys

class Look:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc":
            print("grpc with", os.environ.get("GRPC_EXPERIMENTS"), file=sys.stderr)

sys.meta_path.insert(0, Look())
sys.argv = ["it", "--help"]
try:
    runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
except SystemExit:
    pass
import grpc.aio
grpc.insecure_channel("unix:none").close()
"""


def says(module: str, **env: str) -> str:
    plain = {k: v for k, v in os.environ.items() if k != "GRPC_EXPERIMENTS"}
    done = subprocess.run(
        [sys.executable, "-c", LOOK.format(module=module)],
        env=plain | env, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return done.stderr.strip()


@pytest.mark.parametrize("what", ["control", "runtime", "worker", "operator", "cli"])
def test_it_is_chosen_before_grpc_is_imported_and_grpc_knows_it(what: str) -> None:
    assert says(f"tartlet_{what}") == f"grpc with {CHOICE}"


def test_the_environment_has_the_last_word() -> None:
    assert says("tartlet_cli", GRPC_EXPERIMENTS="") == "grpc with"


def test_the_client_library_leaves_its_program_alone() -> None:
    assert says("tartlet._calls").splitlines()[0] == "grpc with None"


STARTS = """
import asyncio, subprocess, sys
import tartlet_common.rpc.grpc_io
import grpc.aio

async def main():
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        await channel.channel_ready()
        subprocess.run([sys.executable, "-c", ""], preexec_fn=lambda: None)
    await server.stop(0)

asyncio.run(main())
"""


def test_grpc_says_nothing_as_processes_are_started() -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GRPC_")}
    done = subprocess.run(
        [sys.executable, "-c", STARTS], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == ""
