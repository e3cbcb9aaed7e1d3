"""Two engines: one program computes on both through children (ADR 50), and programs leave engines that are replaced."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import tartlet
from tests.e2e.serving import client_of, command, control_of, environment, serving, until_nothing_is_held

STEP_S = "0.02"
CHILDREN, PROMPT, TOKENS = 8, 70, 60
WORK = CHILDREN * (PROMPT + TOKENS)
PROGRAM = f"""
import asyncio, json
from inferlet import Context, spawn

async def solve(number: int) -> str:
    async with Context(seed=number) as ctx:
        ctx.fill_tokens([5 + number + n % 90 for n in range({PROMPT})])
        async for _ in ctx.generate(max_tokens={TOKENS}, eos=False):
            pass
        return json.dumps(list(ctx.tokens)[{PROMPT}:])

async def main(args: list[str]) -> str:
    if args:
        return await solve(int(args[0]))
    children = await asyncio.gather(*(spawn("", [str(number)]) for number in range({CHILDREN})))
    return json.dumps([json.loads(await child.result()) for child in children])
"""


@contextlib.contextmanager
def another_engine(run_dir: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a second worker beside a `tartlet serve`."""
    with (run_dir / "second.out").open("wb") as out:
        process = subprocess.Popen(
            command("serve", "--role", "worker", "--engine", "fake"),
            env=environment(run_dir, TARTLET_WORKER_FAKE_STEP_S=STEP_S),
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def computed(client: tartlet.AsyncClient) -> dict[str, int]:
    """Return how many tokens each engine has computed."""
    return {e["id"]: int(e["computed_tokens"]) for e in (await control_of(client))["engines"]}


async def told(client: tartlet.AsyncClient, spec: tartlet.LaunchSpec) -> list[list[int]]:
    ended = await (await client.run(spec=spec)).wait()
    assert ended.result is not None, ended.error
    return list(json.loads(ended.result))


async def test_children_of_one_program_compute_on_both_engines_and_one_may_die(run_dir: Path) -> None:
    spec = tartlet.LaunchSpec(source=tartlet.Source(PROGRAM.encode(), filename="parent.py"))
    with serving(run_dir, TARTLET_WORKER_FAKE_STEP_S=STEP_S) as server:
        async with client_of(server) as client:
            expected = await told(client, spec)
            assert [len(tokens) for tokens in expected] == [TOKENS] * CHILDREN
            with another_engine(run_dir) as second:
                before = await _two(client)
                assert await told(client, spec) == expected
                after = await computed(client)
                work = {name: count - before[name] for name, count in after.items()}
                assert min(work.values()) > sum(work.values()) / 4, work
                running = asyncio.ensure_future(told(client, spec))
                while min(count - after[n] for n, count in (await computed(client)).items()) < 100:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                second.kill()
                assert await running == expected
            await until_nothing_is_held(client)


async def _two(client: tartlet.AsyncClient) -> dict[str, int]:
    while len(found := await computed(client)) < 2:  # noqa: ASYNC110 - another process joins
        await asyncio.sleep(0.05)
    return found


async def test_programs_go_on_elsewhere_when_engines_are_replaced_in_turn(run_dir: Path) -> None:
    """SIGTERM to each new engine while programs run on it, as a rollout does: nothing ends, and nothing changes."""
    spec = tartlet.LaunchSpec(source=tartlet.Source(PROGRAM.encode(), filename="parent.py"))
    with serving(run_dir, TARTLET_WORKER_FAKE_STEP_S=STEP_S) as server:
        async with client_of(server) as client:
            expected = await told(client, spec)
            for _ in range(2):
                with another_engine(run_dir) as new:
                    before = await _two(client)
                    running = asyncio.ensure_future(told(client, spec))
                    while min(count - before[n] for n, count in (await computed(client)).items()) < 100:  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
                    new.terminate()
                    assert await asyncio.to_thread(new.wait, 30) == 0, "it goes once its programs are elsewhere"
                    assert await running == expected
                    [(stays, count)] = (await computed(client)).items()
                    assert count - before[stays] > 0.65 * WORK, "its programs were finished here, half of the work else"
            await until_nothing_is_held(client)
