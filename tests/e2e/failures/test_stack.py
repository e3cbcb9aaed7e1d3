"""The life of a stack: effects of a role's death on programs, ends of `serve` and `run`, no processes left."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

import tartlet
from tartlet_common.errors.registry import (
    EngineFailure,
    Unavailable,
    WorkerLost,
)
from tests.e2e.serving import (
    PROGRAMS,
    client_of,
    command,
    environment,
    message,
    program,
    roles_in,
    serving,
    tartlet_cli,
    wait_until_none,
)

RESTART_S = 30.0


async def test_a_failing_command_fails_its_program_and_a_broken_engine_is_replaced(run_dir: Path) -> None:
    flags = {"TARTLET_WORKER_FAKE_FAIL_TOKEN": str(ord("~")), "TARTLET_WORKER_FAKE_BREAK_TOKEN": str(ord("^"))}
    with serving(run_dir, **flags) as server:
        async with client_of(server) as client:
            echo = await client.run(program("echo"))
            echoing = aiter(echo)
            assert await message(echoing) == "ready\n"
            failed = await (await client.run(program("sampled"), ["a~", "0", "0", "1", "1"])).wait()
            assert failed.error is not None
            assert EngineFailure.__name__ in str(failed.error) or isinstance(failed.error, EngineFailure)
            broken = await (await client.run(program("sampled"), ["a^", "0", "0", "1", "1"])).wait()
            assert isinstance(broken.error, WorkerLost), broken
            server.until("worker serves", 2, RESTART_S)
            await client.send(echo.program_id, "well")
            assert await message(echoing) == "echo well\n"


def test_ctrl_c_ends_a_run_with_every_process_it_started(run_dir: Path) -> None:
    run = subprocess.Popen(
        command("run", "--engine", "fake", str(PROGRAMS / "endless.py")),
        env=environment(run_dir),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert run.stdout is not None
    assert run.stdout.read(20)
    assert len(roles_in(run_dir)) == 4
    run.send_signal(signal.SIGINT)
    assert run.wait(20) == 130
    assert wait_until_none(run_dir, 0.5) == []
    assert [p.name for p in run_dir.iterdir()] == ["journals"], "the run can be replayed"
    run.communicate()


def test_a_killed_run_leaves_no_process_and_the_next_removes_its_directory(run_dir: Path) -> None:
    run = subprocess.Popen(
        command("run", "--engine", "fake", str(PROGRAMS / "endless.py")),
        env=environment(run_dir),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert run.stdout is not None
    assert run.stdout.read(20)
    run.kill()
    run.communicate()
    assert wait_until_none(run_dir) == []
    assert tartlet_cli(run_dir, "run", "--engine", "fake", str(PROGRAMS / "fails.py")).returncode == 1
    assert [p.name for p in run_dir.iterdir()] == ["journals"], "the failed run can be replayed"


def test_a_second_ctrl_c_does_not_wait(run_dir: Path) -> None:
    run = subprocess.Popen(
        command("run", "--engine", "fake", str(PROGRAMS / "waits.py")),
        env=environment(run_dir),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert run.stdout is not None
    assert run.stdout.read(7) == b"waiting"
    for role in roles_in(run_dir):
        if "tartlet_worker" in " ".join(role.cmdline()):
            role.suspend()  # a stopped process doesn't handle SIGTERM
    run.send_signal(signal.SIGINT)
    time.sleep(0.3)
    run.send_signal(signal.SIGINT)
    assert run.wait(3) == 130
    assert wait_until_none(run_dir, 3) == []
    run.communicate()


def test_a_role_that_can_not_start_stops_the_stack_with_its_reason(run_dir: Path) -> None:
    result = tartlet_cli(run_dir, "serve", "--engine", "torch", "--model", str(run_dir))
    assert result.returncode == 3
    assert "CheckpointMissing" in result.stderr
    bad = tartlet_cli(run_dir, "serve", "--engine", "fake", TARTLET_WORKER_PAGE_SIZE="33")
    assert bad.returncode == 2
    assert "page_size" in bad.stderr
    assert wait_until_none(run_dir, 0.5) == []


def test_serve_killed_takes_its_roles_along(run_dir: Path) -> None:
    with serving(run_dir) as server:
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
        assert wait_until_none(run_dir) == []


async def test_nobody_at_the_address_is_a_typed_error(run_dir: Path) -> None:
    async with tartlet.AsyncClient(f"unix:{run_dir}/none.sock") as client:
        with pytest.raises(Unavailable):
            await client.list()
    result = tartlet_cli(run_dir, "ps")
    assert result.returncode == 3
    assert "tartlet serve" in result.stderr


def test_a_reader_that_goes_away_ends_the_run(run_dir: Path) -> None:
    run = subprocess.Popen(
        command("run", "--engine", "fake", str(PROGRAMS / "endless.py")),
        env=environment(run_dir),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert run.stdout is not None
    run.stdout.read(10)
    run.stdout.close()
    assert run.wait(20) == 1
    assert run.stderr is not None
    assert b"Traceback" not in run.stderr.read()
    run.stderr.close()
    assert wait_until_none(run_dir, 0.5) == []


def test_every_process_of_a_stack_is_a_child_in_a_group_of_its_own(run_dir: Path) -> None:
    with serving(run_dir) as server:
        children = psutil.Process(server.process.pid).children()
        assert len(children) == 3
        assert all(os.getpgid(child.pid) == child.pid for child in children)
