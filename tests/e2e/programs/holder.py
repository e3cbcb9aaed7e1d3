"""Holds KV pages, and generates a token for every message until it is told to stop."""

from __future__ import annotations

import inferlet


async def main() -> str:
    async with inferlet.Context(seed=1) as ctx:
        ctx.fill("some pages to hold, " * 8)
        await ctx.flush()
        inferlet.send("ready\n")
        while await inferlet.receive() != "stop":
            inferlet.send(await ctx.generate_until(max_tokens=1, eos=False) + "\n")
    return "kept"
