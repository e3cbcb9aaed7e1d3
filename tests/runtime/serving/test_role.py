"""The role as a process: readiness, signals, what is left behind."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tartlet_common.config.settings import RuntimeSettings
from tartlet_common.errors import exit_codes
from tartlet_common.errors.registry import RuntimeLost
from tartlet_common.rpc.endpoints import make_channel
from tartlet_common.rpc.error_proto import error_from_proto
from tartlet_protos import programs_pb2, programs_pb2_grpc
from tests.runtime.fake_control import FakeControl, serve_control
from tests.runtime.harness import PYTHON, Stream, launch_spec, make_settings

pytestmark = pytest.mark.usefixtures("python_component")
_Event = programs_pb2.ProgramEvent


def start(settings: RuntimeSettings, log_level: str = "error") -> tuple[subprocess.Popen[bytes], int]:
    """The role as a process, and the descriptor on which it tells how it goes."""
    read, write = os.pipe()
    flags = ["--address", settings.address, "--control", settings.control, "--ready-fd", str(write)]
    flags += ["--guest-socket", str(settings.guest_socket), "--journal-dir", str(settings.journal_dir)]
    command = [sys.executable, "-m", "tartlet_runtime", *flags, "--log-level", log_level]
    process = subprocess.Popen(command, pass_fds=[write], stderr=subprocess.PIPE)
    os.close(write)
    return process, read


def slept(process: subprocess.Popen[bytes]) -> int:
    """How often the process's main thread has gone to sleep so far."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="counts what Linux counts")
async def test_it_sleeps_while_nothing_happens(run_dir: Path) -> None:
    settings = make_settings(run_dir)
    server = await serve_control(FakeControl(), settings.control)
    process, ready = start(settings)
    try:
        assert (await asyncio.to_thread(os.read, ready, 100)).startswith(b"ready")
        often = 99
        async with asyncio.timeout(30):
            while often > 25:  # it makes guests ahead first; then thrice 4 times a second
                before = slept(process)
                await asyncio.sleep(1.0)
                often = slept(process) - before
    finally:
        process.kill()
        process.communicate()
        os.close(ready)
        await server.stop(None)


async def test_sigint_ends_programs_and_the_process_and_leaves_no_socket(run_dir: Path) -> None:
    settings = make_settings(run_dir)
    server = await serve_control(FakeControl(), settings.control)
    process, ready = start(settings, "warning")
    channel = make_channel(settings.address)
    try:
        stub = programs_pb2_grpc.ProgramsStub(channel)
        spec = launch_spec(PYTHON, b"import asyncio\nasync def main():\n    await asyncio.sleep(99)\n")
        stream = Stream(stub.Launch(programs_pb2.LaunchRequest(specs=[spec]), wait_for_ready=True))
        assert (await stream.next(30)).kind == _Event.ACCEPTED
        assert os.read(ready, 100).startswith(b"ready")
        process.send_signal(signal.SIGINT)
        assert isinstance(error_from_proto((await stream.rest())[-1].error), RuntimeLost)
        _, errors = process.communicate(timeout=10)
        assert process.returncode == 0, errors
        assert re.findall(rb"RuntimeLost.*: (\d+)$", errors, re.MULTILINE) == [b"1"], "it says how many have ended"
        assert not settings.guest_socket.exists()
        assert not list(settings.journal_dir.glob("slot-*"))
    finally:
        process.kill()
        process.communicate()
        os.close(ready)
        await channel.close()
        await server.stop(None)


async def test_a_second_runtime_at_one_address_is_refused_and_harms_nothing(run_dir: Path) -> None:
    settings = make_settings(run_dir)
    server = await serve_control(FakeControl(), settings.control)
    first, first_ready = start(settings)
    second = None
    try:
        assert os.read(first_ready, 100).startswith(b"ready")
        second, second_ready = start(settings)
        told = os.read(second_ready, 1000)
        os.close(second_ready)
        assert told.startswith(b"error 505 "), told
        assert second.wait(10) == exit_codes.SYSTEM
        assert settings.guest_socket.exists()
    finally:
        for process in (first, second):
            if process is not None:
                process.kill()
                process.communicate()
        os.close(first_ready)
        await server.stop(None)
