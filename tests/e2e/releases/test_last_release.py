"""This checkout's control serves a runtime and a worker of the last release, which a commit of the history has."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import tartlet
from tests.e2e.cluster import Cluster
from tests.lacking import lacking

ROOT: Final = Path(__file__).parents[3]
LAST_RELEASE: Final = "41da7260323cd98a1d4bd04f856e4349d0508577"
"""The last commit whose roles speak `endpoints.OLDEST_PROTOCOL`, and no later one."""
PACKAGES: Final = ("services", "gpu_worker", "protos", "inferlets/sdk/python")
ROUNDS: Final = 3
VARIANTS: Final = 4

pytestmark = [pytest.mark.beyond_gate, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def last_release() -> Iterator[str]:
    """A PYTHONPATH with the packages of the last release."""
    with tempfile.TemporaryDirectory(prefix="tt-last-") as directory:
        archive = ("git", "-C", str(ROOT), "archive", LAST_RELEASE, *PACKAGES, "inferlets/guest", "inferlets/wit")
        made = subprocess.run(archive, capture_output=True, check=False)
        if made.returncode != 0:
            lacking(f"the history has no commit {LAST_RELEASE[:8]}: fetch all of it ({made.stderr.decode().strip()})")
        with tarfile.open(fileobj=io.BytesIO(made.stdout)) as files:
            files.extractall(directory, filter="data")
        path = os.pathsep.join(str(Path(directory, package)) for package in PACKAGES)
        asked = "from tartlet_common.rpc import endpoints as e; print(e.__file__, e.PROTOCOL_VERSION)"
        told = subprocess.run(
            [sys.executable, "-c", asked],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        assert (Path(told[0]).is_relative_to(directory), told[1]) == (True, "1")
        yield path


async def answered(client: tartlet.AsyncClient, variant: int) -> str:
    """Runs a program that thinks, forks, calls a tool and waits for messages; returns its result."""
    source = tartlet.Source.from_file(ROOT / "bench" / "guests" / "wanderer.py")
    run = await client.run(source, [str(variant), str(ROUNDS)])
    async for event in run:
        if isinstance(event, tartlet.Message):
            for line in event.text.splitlines():
                kind, number, *rest = line.split()
                text = f"tool answer {number} {' '.join(rest)}" if kind == "call" else f"message {number}"
                await client.send(run.program_id, text)
        elif isinstance(event, tartlet.Ended):
            assert event.error is None, event.error
            return event.result or ""
    raise AssertionError("no end was told")


async def results(made: Cluster) -> list[str]:
    """Runs all variants at once."""
    async with tartlet.AsyncClient(made.runtimes[0], control=made.control, tls=made.identity("client")) as client:
        return await asyncio.gather(*(answered(client, variant) for variant in range(VARIANTS)))


def served(directory: Path, *, runtime: str = "", worker: str = "") -> list[str]:
    """Returns the results on this checkout's control, with a runtime and a worker from these PYTHONPATHs."""
    runtime_env, worker_env = ({"PYTHONPATH": path} if path else {} for path in (runtime, worker))
    made = Cluster(directory)
    try:
        made.start_control()
        made.start_worker(**worker_env)
        made.start_runtime(0, **runtime_env)
        for role in made.roles.values():
            role.until_readyz(200)
        found = asyncio.run(results(made))
        assert [name for name, role in made.roles.items() if role.process.poll() is not None] == []
        return found
    finally:
        made.stop()


@pytest.fixture(scope="module")
def expected() -> list[str]:
    """The results with all roles of this checkout."""
    with tempfile.TemporaryDirectory(prefix="tt-") as directory:
        found = served(Path(directory))
    assert len(set(found)) == VARIANTS
    return found


@pytest.mark.parametrize(
    ("runtime", "worker"), [(True, True), (True, False), (False, True)], ids=["both", "the runtime", "the worker"]
)
def test_control_serves_roles_of_the_last_release(
    run_dir: Path, last_release: str, expected: list[str], *, runtime: bool, worker: bool
) -> None:
    if runtime:  # its Python guest takes minutes, once
        build = [sys.executable, "-m", "tartlet_runtime.guests.build"]
        subprocess.run(build, env={**os.environ, "PYTHONPATH": last_release}, check=True, timeout=500)
    found = served(run_dir, runtime=last_release if runtime else "", worker=last_release if worker else "")
    assert found == expected
