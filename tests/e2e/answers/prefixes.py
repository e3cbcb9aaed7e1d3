"""Completes a prompt, saves it under a name, or loads it; returns what it wrote and computed as JSON."""

from __future__ import annotations

import json

import inferlet

PROMPT = "You answer with care, and you add numbers. " * 6


async def main(args: list[str]) -> str:
    what, rest = args[0], args[1] if len(args) > 1 else ""
    if what == "load":
        ctx = await inferlet.Context.load("docs", seed=1)
    else:
        ctx = inferlet.Context(seed=1, prefix_cache=what != "alone")
        ctx.fill(PROMPT)
    if what == "save":
        exported = await ctx.save("docs")
        return json.dumps([exported.tokens, exported.version, exported.digest])
    ctx.fill(rest)
    text = await ctx.generate_until(max_tokens=12)
    used = await inferlet.usage()
    return json.dumps([text, len(ctx.tokens), used.computed_tokens, used.cached_tokens])
