"""One completion for a client that keeps the history: prompt tokens in JSON, and how many to generate.

The result is JSON: the tokens.
"""

from __future__ import annotations

import json
import sys

from inferlet import Context, Greedy


async def main() -> str:
    """Continue the prompt."""
    async with Context() as ctx:
        ctx.fill_tokens(json.loads(sys.argv[1]))
        generation = ctx.generate(max_tokens=int(sys.argv[2]), sampler=Greedy(), eos=False)
        async for _ in generation:
            pass
    return json.dumps(generation.tokens)
