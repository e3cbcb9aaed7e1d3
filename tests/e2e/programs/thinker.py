"""Generates in three branches of a prompt for every message, until it is told to stop. `masked` hides tokens first."""

from __future__ import annotations

import asyncio
import sys

import inferlet


async def main() -> str:
    warm = inferlet.Sampler(1.0, None, 1.0, None, 1)
    async with inferlet.Context(seed=1) as ctx:
        ctx.fill("a prompt that takes more than one page, " * 4)
        await ctx.flush()
        if "masked" in sys.argv:
            ctx.mask(range(4, 9))
        branches = ctx.fork(3)
        for n, branch in enumerate(branches):
            branch.fill(f"branch {n}")
        inferlet.send("ready\n")
        while await inferlet.receive() != "stop":
            texts = await asyncio.gather(*(b.generate_until(max_tokens=40, sampler=warm, eos=False) for b in branches))
            inferlet.send("|".join(texts) + "\n")
    return "thought"
