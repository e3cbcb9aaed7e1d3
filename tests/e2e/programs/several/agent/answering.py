"""Puts a question and a sum together."""

from __future__ import annotations

from importlib import resources

from abilities.calculator import add

from inferlet import Context

from . import prompts


async def answer(question: str) -> str:
    prefix = resources.files(prompts).joinpath("prefix.txt").read_text().strip()
    async with Context() as ctx:
        ctx.fill(f"{prefix} {question} {add('1', '2')}")
        text = await ctx.generate_until(max_tokens=8)
    return f"{prefix} {question} {add('1', '2')}: {len(text)}"
