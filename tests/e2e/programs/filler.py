"""Fills a context with as many tokens as its argument says, and generates without end."""

from __future__ import annotations

import sys

import inferlet


async def main() -> None:
    count = int(sys.argv[1])
    async with inferlet.Context(seed=1) as ctx:
        ctx.fill_tokens([5 + n % 97 for n in range(count)])
        inferlet.send("begins")
        async for _ in ctx.generate(max_tokens=100_000, eos=False):
            pass
