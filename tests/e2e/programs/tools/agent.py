"""Thinks in two branches, calls a tool for each round, and says what it thought. The client is the tool."""

from __future__ import annotations

import asyncio
import random
import sys

import inferlet


async def main() -> str:
    rounds = int(sys.argv[1])
    warm = inferlet.Sampler(1.0, None, 1.0, None, 1)
    thought = []
    async with inferlet.Context(seed=1) as ctx:
        ctx.fill("an agent that thinks before it calls, " * 2)
        await ctx.flush()
        for n in range(rounds):
            first, second = ctx.fork(2)
            first.fill(f"one {n}")
            second.fill(f"two {n}")
            texts = await asyncio.gather(
                *(branch.generate_until(max_tokens=12, sampler=warm, eos=False) for branch in (first, second))
            )
            sys.stdout.write(f"{n} {random.randrange(1000)}\n")
            inferlet.send(f"call {n} {texts[0]}")
            answer = await inferlet.receive()
            inferlet.send(f"said {answer} {texts[1]}")
            thought.append(answer)
            ctx.fill(answer)
            await asyncio.sleep(0.01)
    return ",".join(thought)
