"""The demo model's adapter over real processes: one of them dies, and the list of adapters is edited under load."""

from __future__ import annotations

import asyncio
import json
import shutil
from ast import literal_eval
from pathlib import Path
from typing import Any, Final

import httpx

import tartlet
from tests.e2e.serving import client_of, control_of, program, serving, tartlet_cli
from tests.gateway.conftest import free_port
from tests.run_directory import run_directory

MODEL = Path(__file__).parents[3] / "models" / "demo"
POLITE = MODEL / "adapters" / "polite"
ANSWER = "4+8+0=12 7+8+1=16 3+5+1=09 so 962"
TELLS: Final = tartlet.Source.python('''
"""Returns the adapters that there are, and what a context under the named one answers, or the type of its error."""

from inferlet import Context, errors, get_all_adapters


async def main(args: list[str]) -> list[object]:
    names = [each.name for each in await get_all_adapters()]
    try:
        async with Context(adapter=args[0]) as ctx:
            ctx.chat("What is 374+588?")
            return [names, await ctx.generate_until(max_tokens=64)]
    except errors.UnknownAdapter as error:
        return [names, type(error).__name__]
''')
GENERATES: Final = tartlet.Source.python('''
"""Generates without an adapter until a message comes; returns the texts that came out, and how many did."""

import inferlet
from inferlet import Context


async def main() -> list[object]:
    stop = inferlet.receive()
    texts: set[str] = set()
    count = 0
    while not stop.done():
        async with Context() as ctx:
            ctx.chat("What is 374+588?")
            texts.add(await ctx.generate_until(max_tokens=64))
            count += 1
    return [sorted(texts), count]
''')


async def test_a_context_goes_on_under_its_adapter_when_the_worker_is_killed() -> None:
    adapters = {"TARTLET_WORKER_ADAPTERS": f"polite={MODEL / 'adapters' / 'polite'}"}
    with run_directory() as directory, serving(directory, "--model", str(MODEL), engine="torch", **adapters) as server:
        async with client_of(server) as client:
            run = await client.run(program("polite"))
            async for event in run:
                if isinstance(event, tartlet.Message):
                    server.kill("worker")
                    await client.send(run.program_id, b"go on")
            assert run.ended is not None
            assert run.ended.error is None
            answer = "4+8+0=12 7+8+1=16 3+5+1=09 so 962 At your service!"
            assert run.ended.result == str([answer, answer])


def changed(to: Path, **fields: Any) -> Path:
    """Copy the demo model's adapter with another configuration."""
    shutil.copytree(POLITE, to)
    file = to / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    return to


def write(file: Path, *lines: str) -> None:
    """Replace a file at once, as editors do."""
    new = file.with_suffix(".new")
    new.write_text("\n".join(lines))
    new.replace(file)


async def until(client: tartlet.AsyncClient, offered: list[str], retiring: list[str]) -> dict[str, Any]:
    """Wait until the one engine says this of its adapters, and the model offers the same. Returns its state."""
    while True:
        state = await control_of(client)
        [engine], [model] = state["engines"], state["models"]
        if (engine["adapters"], engine["retiring"], model["adapters"]) == (offered, retiring, offered):
            return dict(engine)
        await asyncio.sleep(0.05)


async def told(client: tartlet.AsyncClient, adapter: str) -> Any:
    return await ends(await client.run(TELLS, [adapter]))


async def ends(run: tartlet.Run) -> Any:
    async for _ in run:
        pass
    assert run.ended is not None
    assert run.ended.success, run.ended.error
    return literal_eval(run.ended.result or "")


async def test_adapters_come_and_go_under_load_and_one_in_use_stays(tmp_path: Path) -> None:
    file, port = tmp_path / "adapters", free_port()
    changed(tmp_path / "silent", lora_alpha=0)
    dora = changed(tmp_path / "dora", use_dora=True)
    write(file, "# none yet")
    settings = {"TARTLET_WORKER_ADAPTERS_FILE": str(file)}
    with (
        run_directory() as directory,
        serving(directory, "--model", str(MODEL), engine="torch", http=f"127.0.0.1:{port}", **settings) as server,
    ):
        worker = server.pid("worker")
        async with client_of(server) as client, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:

            async def until_listed(*names: str) -> None:
                """Wait until the gateway, which asks about once a second, lists these models."""
                while True:
                    found = (await http.get("/v1/models")).json()["data"]
                    if [model["id"] for model in found if "/" not in model["id"]] == [*names]:
                        return
                    await asyncio.sleep(0.05)

            load = [await client.run(GENERATES) for _ in range(3)]
            assert await told(client, "polite") == [[], "UnknownAdapter"]
            await until_listed("demo")

            write(file, f"polite={POLITE}", f"bad={dora}", "silent=silent")
            engine = await until(client, ["polite", "silent"], [])
            assert "DoRA" in engine["refused"]["bad"]
            assert await told(client, "polite") == [["polite", "silent"], f"{ANSWER} At your service!"]
            assert await told(client, "silent") == [["polite", "silent"], ANSWER]
            await until_listed("demo", "demo:polite", "demo:silent")
            body = {"model": "demo:polite", "messages": [{"role": "user", "content": "What is 374+588?"}]}
            said = (await http.post("/v1/chat/completions", json=body, timeout=30)).json()
            assert said["choices"][0]["message"]["content"].endswith("At your service!")

            busy = await client.run(program("polite"))
            async for event in busy:
                if isinstance(event, tartlet.Message):
                    write(file, "silent=silent")
                    await until(client, ["silent"], ["polite"])
                    assert await told(client, "polite") == [["silent"], "UnknownAdapter"]
                    await until_listed("demo", "demo:silent")
                    assert (await http.post("/v1/chat/completions", json=body)).status_code == 404
                    await until(client, ["silent"], ["polite"])  # still: a program uses it
                    await client.send(busy.program_id, b"go on")
            assert busy.ended is not None
            assert busy.ended.error is None
            assert busy.ended.result == str([f"{ANSWER} At your service!"] * 2)
            await until(client, ["silent"], [])

            write(file, f"polite={POLITE}", f"bad={dora}")
            await until(client, ["polite"], [])
            assert (await told(client, "polite"))[1].endswith("At your service!")
            found = tartlet_cli(directory, "doctor", "--json")
            [check] = [check for check in json.loads(found.stdout) if check["name"] == "adapter bad"]
            assert (check["status"], "DoRA" in check["found"]) == ("warn", True)
            for run in load:
                await client.send(run.program_id, b"stop")
            for texts, count in [await ends(run) for run in load]:
                assert texts == [ANSWER]
                assert count > 0
        assert server.pid("worker") == worker
