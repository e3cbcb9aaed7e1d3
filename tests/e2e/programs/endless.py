"""Generates tokens without end."""

from __future__ import annotations

import inferlet


async def main() -> None:
    async with inferlet.Context(seed=1) as ctx:
        ctx.fill("on and on: ")
        while True:
            async for piece in ctx.generate(max_tokens=64, eos=False):
                inferlet.send(piece)
