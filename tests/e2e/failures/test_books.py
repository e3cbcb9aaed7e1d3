"""A test fails if a control that it has started has a wrong book of a program, and each control compares."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import tartlet
from tests.books import SETTING, Books, books
from tests.e2e.cluster import Cluster
from tests.e2e.serving import Serving, client_of, message, program

TURNS = 50
BREAKS_A_BOOK = """
import os, pathlib

def test_that_passes():
    pathlib.Path(os.environ["{setting}"], "wrong-1-1").write_text("tables of fake: not the fold")

def test_of_another_kind():
    pass
"""


async def think(client: tartlet.AsyncClient, found: Books, pid: int) -> None:
    """Lets a program generate until the control with a process id has compared and, if it forgets, found a book."""
    run = await client.run(program("thinker"))
    events = aiter(run)
    assert await message(events) == "ready\n"
    for turn in range(TURNS):
        await client.send(run.program_id, "on")
        await message(events)
        if turn and found.counts(pid).comparisons:
            break
    await client.send(run.program_id, "stop")
    assert (await run.wait()).success


async def test_control_compares_books_in_every_test(server: Serving) -> None:
    pid = server.pid("control")
    async with client_of(server) as client:
        await think(client, books(), pid)
    assert books().counts(pid).comparisons
    assert not books().counts(pid).wrong


async def test_a_book_that_misses_a_command_is_found(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SETTING, str(tmp_path))
    found, cluster = Books(tmp_path), Cluster(run_dir)
    try:
        cluster.start_control(module="tests.e2e.forgetful_control")
        cluster.start_worker()
        cluster.start_runtime(0)
        for role in cluster.roles.values():
            await asyncio.to_thread(role.until_readyz, 200)
        pid = cluster.roles["control"].process.pid
        async with (
            asyncio.timeout(60),
            tartlet.AsyncClient(cluster.runtimes[0], tls=cluster.identity("client")) as client,
        ):
            await think(client, found, pid)
    finally:
        cluster.stop()
    with pytest.raises(AssertionError, match=r"(?s)aren't the folds .*program .*\ntables of fake"):
        found.check()
    found.check()  # tells each book once


def test_a_wrong_book_fails_the_test_that_runs(tmp_path: Path, repo: Path) -> None:
    file = tmp_path / "test_inner.py"
    file.write_text(BREAKS_A_BOOK.format(setting=SETTING))
    flags = ["-p", "tests.books", "-p", "no:cacheprovider", "-c", "/dev/null"]
    command = [sys.executable, "-m", "pytest", *flags, str(file)]
    done = subprocess.run(command, cwd=repo, capture_output=True, text=True, check=False)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert "2 passed, 1 error" in done.stdout
    assert "ERROR at teardown of test_that_passes" in done.stdout
    assert "tables of fake: not the fold" in done.stdout
