"""Computes on the engine that control chooses, and returns the engine's page size, which tells engines apart."""

from __future__ import annotations

import inferlet


async def main() -> str:
    async with inferlet.Context() as ctx:
        ctx.fill("hello")
        async for _ in ctx.generate(max_tokens=2, eos=False):
            pass
    return str(inferlet.get_kv_page_size())
