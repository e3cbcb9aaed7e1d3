"""Says how many tokens it needs in all, generates some of them, and waits for a message."""

from __future__ import annotations

import sys

import inferlet


async def main() -> str:
    total, now = map(int, sys.argv[1:3])
    async with inferlet.Context() as ctx:
        prompt = [5, 6, 7, 8]
        inferlet.expect(total)
        ctx.fill_tokens(prompt)
        await ctx.generate_until(max_tokens=now, eos=False)
        inferlet.send("half\n")
        await inferlet.receive()
    return "done"
