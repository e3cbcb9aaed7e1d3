"""Programs that start programs, with real processes that are killed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tartlet
from tartlet import Capabilities, LaunchSpec
from tartlet_common.errors.registry import ParentEnded
from tartlet_runtime.wasm import HostConfig, WasmHost
from tests.e2e.answers.test_replay import replay
from tests.e2e.compiling import compiled
from tests.e2e.serving import Serving, client_of, message, output, serving, tartlet_cli
from tests.run_directory import run_directory

FAMILY = tartlet.Source.from_file(Path(__file__).parent / "family.py")
SAID = [[f"{name} begins", *(f"{name} heard {n}" for n in range(3))] for name in ("a", "b")]
ENDED = ["a ends", "b ends"]


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with run_directory() as directory, serving(directory, TARTLET_RUNTIME_KEEP_JOURNALS="true") as running:
        yield running


def family(*args: str) -> LaunchSpec:
    return LaunchSpec(source=FAMILY, args=args)


async def info_of(client: tartlet.AsyncClient, program_id: str) -> tartlet.ProgramInfo:
    (found,) = [info for info in await client.list(ended=True) if info.program_id == program_id]
    return found


async def ended(client: tartlet.AsyncClient, program_id: str) -> tartlet.ProgramInfo:
    while (info := await info_of(client, program_id)).state not in {"succeeded", "failed"}:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return info


async def talk(client: tartlet.AsyncClient, inferlet: str = "") -> tuple[str, list[str], Any]:
    """Launches a parent and returns its id, its children's and its run, which waits for a message."""
    run = await client.run(spec=family("talk", *([inferlet] if inferlet else [])))
    children = json.loads(await message(run))
    return run.program_id, children, run


async def result(run: Any) -> Any:
    async for _ in run:
        pass
    assert run.ended is not None
    assert run.ended.success, run.ended.error
    return json.loads(run.ended.result)


async def test_a_parent_talks_with_children_of_its_own_source_and_of_the_catalogue(server: Serving) -> None:
    async with client_of(server) as client:
        await client.put([tartlet.CatalogueEntry("family", FAMILY)])
        for inferlet in ("", "family"):
            parent, children, run = await talk(client, inferlet)
            assert [(await info_of(client, child)).parent for child in children] == [parent] * 2
            assert parent in tartlet_cli(server.run_dir, "ps", "--json", "--all").stdout
            await client.send(parent, "go")
            assert await result(run) == [SAID, ENDED]


async def test_children_fail_and_are_refused_with_typed_errors(server: Serving) -> None:
    async with client_of(server) as client:
        _, found = await output(client, family("refusals"))
    failed = ["ProgramFailed", "DeadlineExceeded", "ProgramKilled"]
    refused = ["UnknownInferlet", "ResourceQuotaExceeded", "InvalidArgument", "UnknownResource"]
    assert json.loads(found or "") == [*failed, *refused, "none", "ends"]


@pytest.mark.parametrize(("how", "told"), [("detached", "refused in run 2"), ("with it", "never refused")])
async def test_detached_children_of_earlier_runs_count(server: Serving, how: str, told: str) -> None:
    async with client_of(server) as client:
        _, found = await output(client, family("reborn", how))
    assert found == told


async def test_topics_names_and_programs_that_a_launch_does_not_allow_are_refused(server: Serving) -> None:
    allowed = Capabilities(topics=["open/*"], names=["open/*"], spawn=["open/*"])
    async with client_of(server) as client:
        _, found = await output(client, replace(family("bounded"), capabilities=allowed))
        assert json.loads(found or "") == ["NotAllowed"] * 6 + ["done"] * 5 + ["UnknownInferlet"]


C_PROGRAM = r"""
#include "tartlet.h"
static const char asked[] = "{\"args\":[\"child\"]}";
static int32_t tartlet_main(void) {
  tl_record *args = tl_await(tl_ask(tl_get_arg()));
  if (!args) return 1;
  if (args->length > 4) { /* ["child"] */
    tl_send("from the child", 14);
    return 0;
  }
  if (!tl_await(tl_ask(tl_spawn(7, asked, sizeof asked - 1)))) return 2;
  for (uint32_t offset = 0;;) {
    tl_record *told = tl_await(tl_ask(tl_child_next(7, offset)));
    if (!told) return 3;
    offset = told->b;
    if (told->a == TL_CHILD_EVENT_MESSAGE) tl_send(tl_payload(told), told->length);
    if (told->a == TL_CHILD_EVENT_RESULT) return 0;
    if (told->a == TL_CHILD_EVENT_ERROR) return 4;
  }
}
"""


async def test_a_program_in_c_starts_a_child_and_hears_it(server: Serving, tmp_path: Path) -> None:
    pytest.importorskip("ziglang")
    async with client_of(server) as client:
        run = await client.run(compiled(tmp_path, C_PROGRAM))
        said = [event.text async for event in run if isinstance(event, tartlet.Message)]
        assert run.ended is not None
        assert run.ended.success, run.ended.error
        assert said == ["from the child"]
        assert [info.parent for info in await client.list(ended=True)].count(run.program_id) == 1


async def test_a_child_ends_with_its_parent_unless_it_is_detached(server: Serving) -> None:
    async with client_of(server) as client:
        for how in ("with it", "detached"):
            run = await client.run(spec=family("starts", how))
            child = await message(run)
            await client.kill(run.program_id)
            if how == "detached":
                await client.send(child, "end")
                assert (await ended(client, child)).state == "succeeded"
            else:
                assert isinstance((await ended(client, child)).error, ParentEnded)


async def test_a_killed_runtime_starts_no_child_twice_and_loses_no_message(server: Serving) -> None:
    async with client_of(server) as client:
        parent = (await client.launch(spec=family("talk"))).program_id
        run = await client.attach(parent)
        children = json.loads(await message(run))
        serves = server.text().count("runtime serves")
        server.kill("runtime")
        await asyncio.to_thread(server.until, "runtime serves", serves + 1)
        await client.send(parent, "go")
        assert await result(run) == [SAID, ENDED]
        theirs = [info.program_id for info in await client.list(ended=True) if info.parent == parent]
        assert sorted(theirs) == sorted(children)


async def test_a_parent_replays_to_the_same_commands(server: Serving) -> None:
    async with client_of(server) as client:
        parent, _, run = await talk(client)
        await client.send(parent, "go")
        told = await result(run)
    path: Path = server.run_dir / "journals" / f"{parent}.journal"
    with WasmHost(HostConfig(max_guests=2)) as wasm:
        again = replay(wasm, path)
    assert again.error is None
    assert json.loads(again.text) == told
