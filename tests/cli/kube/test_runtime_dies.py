"""`run --kube` while the runtime dies that it is forwarded to, which also runs its program.

Skipped where the fixture api_server can start none.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.kube.kube_shell import Shell, file
from tests.cli.kube.releases import DOMAIN, ready, release_up
from tests.e2e.cluster import Cluster as Roles

PROGRAM = """
import asyncio
from inferlet import Context, TopK

async def main():
    said = []
    async with Context(seed=7) as ctx:
        ctx.fill("Once upon a time")
        for n in range(40):
            said.append(await ctx.generate_until(max_tokens=3, sampler=TopK(20), eos=False))
            print(n, said[-1], flush=True)
            await asyncio.sleep(0.02)
    return " ".join(said)
"""
LINES = 40 + 1
"""What the program prints, and its result."""
KILLED_AT = 10


@pytest.fixture(scope="module")
def roles() -> Iterator[Roles]:
    """Control, a fake engine and two runtimes with the same journals, over mutual TLS."""
    directory = Path(tempfile.mkdtemp(prefix="tt-"))
    made = Roles(directory, DOMAIN)
    try:
        made.start_control("--runtime-grace-s", "0.5")
        made.start_worker()
        for number in range(2):
            start_runtime(made, number)
        yield made
    finally:
        made.stop()
        shutil.rmtree(directory, ignore_errors=True)


def start_runtime(roles: Roles, number: int) -> None:
    roles.start_runtime(number, TARTLET_RUNTIME_JOURNAL_DIR=str(roles.directory / "journals"))


@pytest.mark.parametrize("comes_back", [True, False], ids=["the-same-pod", "another-pod"])
def test_a_run_goes_on_behind_its_last_line_when_its_runtime_is_killed(
    roles: Roles, shell: Shell, *, comes_back: bool
) -> None:
    program = file(shell, PROGRAM)
    if roles.roles["runtime0"].process.poll() is not None:
        start_runtime(roles, 0)
    for role in roles.roles.values():
        role.until_readyz(200)
    with release_up(shell, roles, roles.runtimes) as release:
        undisturbed = release.editor("run", "--kube", program)
        assert undisturbed.returncode == 0, undisturbed.stderr
        lines = undisturbed.stdout.splitlines()
        assert len(lines) == LINES
        process = release.editor.start("run", "--kube", program)
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(KILLED_AT)]
        roles.roles["runtime0"].kill()
        if comes_back:
            start_runtime(roles, 0)  # as the kubelet starts a container again
        else:
            ready(release, "False")
        rest, told = process.communicate(timeout=90)
        assert process.returncode == 0, told
        assert "".join(said) + rest == undisturbed.stdout
        asked = [path.partition("?")[0].rpartition("/")[2] for path in release.kubelet.paths]
        assert asked[-1] == ("prod-runtime-0" if comes_back else "prod-runtime-1")
        assert len(asked) >= 3, "it has connected again"
