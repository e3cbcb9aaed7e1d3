"""Programs that need more pages than the engine has take turns in its host memory, and compute what each does alone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import tartlet
from tests.e2e.serving import control_of, serving, until_nothing_is_held

PROGRAMS, PROMPT, TOKENS = 3, 40, 60
PROGRAM = f"""
import json, sys
from inferlet import Context

async def main(args: list[str]) -> str:
    async with Context() as ctx:
        ctx.fill_tokens([5 + (int(args[0]) * 31 + n * 7) % 90 for n in range({PROMPT})])
        async for _ in ctx.generate(max_tokens={TOKENS}, eos=False):
            pass
        return json.dumps(list(ctx.tokens)[{PROMPT}:])
"""
MEMORY = {
    "TARTLET_WORKER_KV_MEMORY_BYTES": str(10 << 14),  # 10 pages of 16 tokens; each program grows from 3 to 7
    "TARTLET_WORKER_HOST_KV_BYTES": str(1 << 20),
    "TARTLET_WORKER_FAKE_STEP_S": "0.01",
    "TARTLET_CONTROL_PREFIX_CACHE": "false",
}


async def told(client: tartlet.AsyncClient, number: int) -> list[int]:
    source = tartlet.Source(PROGRAM.encode(), filename="filler.py")
    ended = await (await client.run(source, args=[str(number)])).wait()
    assert ended.result is not None, ended.error
    return list(json.loads(ended.result))


async def test_pages_go_to_host_memory_and_back_and_no_token_changes(run_dir: Path) -> None:
    with serving(run_dir, **MEMORY) as server:
        async with asyncio.timeout(100), tartlet.AsyncClient(server.address) as client:
            alone = [await told(client, number) for number in range(PROGRAMS)]
            assert len({tuple(tokens) for tokens in alone}) > 1
            running = asyncio.gather(*(told(client, number) for number in range(PROGRAMS)))
            kept, states = 0, set()
            while not running.done():
                state = await control_of(client)
                [engine] = state["engines"]
                kept = max(kept, engine["host_pages"]["total"] - engine["host_pages"]["free"])
                states |= {each["state"] for each in state["programs"]}
                await asyncio.sleep(0.05)
            assert await running == alone
            assert kept > 0, "no page was ever in host memory"
            assert "suspended" in states
            [engine] = (await control_of(client))["engines"]
            assert engine["host_pages"]["free"] == engine["host_pages"]["total"]
            await until_nothing_is_held(client)
