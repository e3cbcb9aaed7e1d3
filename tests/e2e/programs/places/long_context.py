"""Fills a context with a long prompt, waits for a message, and goes on with a few tokens."""

from __future__ import annotations

import sys

import inferlet


async def main() -> str:
    seed, tokens = map(int, sys.argv[1:3])
    async with inferlet.Context(seed=seed) as ctx:
        ctx.fill("".join(chr(97 + (seed + at * at) % 26) for at in range(tokens)))
        text = await ctx.generate_until(max_tokens=20, eos=False)
        inferlet.send("filled")
        await inferlet.receive()
        return text + await ctx.generate_until(max_tokens=20, eos=False)
