"""An agent with local tools: it generates some tokens, calls a tool, reads what the tool says, and goes on.

Arguments: prompt tokens, calls, tokens before each call and at the end. The result is JSON:
all tokens that were generated.
"""

from __future__ import annotations

import json
import sys

from inferlet import Context, Greedy


def prompt(length: int) -> list[int]:
    """Return a made-up prompt: instructions and descriptions of tools."""
    return [10 + i * 7 % 200 for i in range(length)]


def tool(tokens: list[int]) -> list[int]:
    """Return what a tool says to a call: tokens made of the call's."""
    return [10 + (31 * token + i) % 200 for i, token in enumerate(tokens[-8:])]


async def main() -> str:
    """Call the tool as often as the arguments say, then answer."""
    length, calls, tokens = map(int, sys.argv[1:])
    made: list[int] = []
    async with Context() as ctx:
        ctx.fill_tokens(prompt(length))
        for call in range(calls + 1):
            generation = ctx.generate(max_tokens=tokens, sampler=Greedy(), eos=False)
            async for _ in generation:
                pass
            made += generation.tokens
            if call < calls:
                ctx.fill_tokens(tool(generation.tokens))
    return json.dumps(made)
