"""Forks a long prompt; returns how many pages are held before, after, and when every fork is eight tokens further."""

from __future__ import annotations

import asyncio
import sys

import inferlet


async def main() -> str:
    length, branches = int(sys.argv[1]), int(sys.argv[2])
    held = []
    async with inferlet.Context(seed=1) as ctx:
        ctx.fill("x" * length)
        await ctx.flush()
        held.append((await inferlet.usage()).pages)
        forks = ctx.fork(branches)
        await asyncio.gather(*(fork.flush() for fork in forks))
        held.append((await inferlet.usage()).pages)
        await asyncio.gather(*(fork.generate_until(max_tokens=8, eos=False) for fork in forks))
        held.append((await inferlet.usage()).pages)
    return " ".join(str(pages) for pages in held)
