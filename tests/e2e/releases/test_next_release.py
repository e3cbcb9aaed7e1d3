"""A runtime of a next release, with another Python component, goes on with the programs of the runtime before."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import tartlet
from tartlet_common.errors.registry import RuntimeLost, UnknownProgram
from tartlet_runtime.guests.build import guest_digest, python_guest, world_digest
from tartlet_runtime.wasm.compiling.aot import AotCache, ModuleKind
from tests.e2e.cluster import Cluster, cluster

pytestmark = pytest.mark.slow

WAITS: Final = """
import inferlet

async def main():
    async with inferlet.Context(seed=1) as ctx:
        ctx.fill("a prompt")
        before = await ctx.generate_until(max_tokens=8, eos=False)
        inferlet.send("waits")
        word = await inferlet.receive()
        return f"{word} {before}{await ctx.generate_until(max_tokens=8, eos=False)}"
"""
NEXT: Final = "f" * 64
"""The digest of the next release's component. Its code is that of this one."""


def cache(directory: Path, digest: str, *kept: str) -> Path:
    """Makes a cache directory whose Python component has this digest; those of `kept` are there too."""
    built = python_guest()
    notes, aot = directory / "guest", AotCache(directory)
    for folder in (notes, aot.directory):
        folder.mkdir(mode=0o700, parents=True)
    for each, name in ((digest, guest_digest()), *((each, "earlier") for each in kept)):
        shutil.copy(built.path, aot.path_of(each, ModuleKind.COMPONENT))
        told = {"sha256": each, "bytes": 1, "world": world_digest()}
        (notes / f"python-{name}.json").write_text(json.dumps(told))
    return directory


@pytest.fixture
def roles() -> Iterator[Cluster]:
    """Control and a worker."""
    with tempfile.TemporaryDirectory(prefix="tt-") as directory, cluster(Path(directory), runtimes=0) as made:
        yield made


async def taken_over(roles: Cluster, before: Path, after: Path) -> tartlet.Ended:
    """Kills the runtime of a program, and starts the next one with another cache; returns the program's end."""
    roles.start_runtime(0, TARTLET_CACHE_DIR=str(before)).until_readyz(200)
    async with tartlet.AsyncClient(roles.runtimes[0], tls=roles.identity("client")) as client:
        run = await client.run(tartlet.Source.python(WAITS))
        async for event in run:
            if isinstance(event, tartlet.Message) and event.text == "waits":
                roles.roles["runtime0"].kill()
                os.close(roles.roles["runtime0"].ready_fd)
                roles.start_runtime(0, TARTLET_CACHE_DIR=str(after)).until_readyz(200)
                with contextlib.suppress(UnknownProgram):
                    await client.send(run.program_id, "and")
            elif isinstance(event, tartlet.Ended):
                return event
    raise AssertionError("no end was told")


async def test_programs_go_on_with_the_component_that_they_began_with(roles: Cluster, tmp_path: Path) -> None:
    own = python_guest().digest
    ended = await taken_over(roles, cache(tmp_path / "1", own), cache(tmp_path / "2", NEXT, own))
    assert ended.error is None
    assert (ended.result or "").startswith("and ")
    assert "an earlier release" in roles.roles["runtime0"].log.read_text()


async def test_a_program_whose_component_is_gone_ends_and_the_log_names_both(roles: Cluster, tmp_path: Path) -> None:
    own = python_guest().digest
    with pytest.raises(RuntimeLost):
        await taken_over(roles, cache(tmp_path / "1", own), cache(tmp_path / "2", NEXT))
    told = roles.roles["runtime0"].log.read_text()
    assert own in told
    assert NEXT in told
