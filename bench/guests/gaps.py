"""Generates tokens, and returns the longest time between two of them, s.

The arguments are the number of tokens and a seed. The clock of a program stands at the last thing that it was told.
"""

from __future__ import annotations

import sys
import time

from inferlet import Context, receive, send


async def main() -> str:
    """Generate; with the first token, wait for a message."""
    tokens = int(sys.argv[1])
    longest_s = last_s = 0.0
    async with Context(seed=int(sys.argv[2])) as context:
        context.fill_tokens([10 + i for i in range(16)])
        async for _ in context.generate(max_tokens=tokens, eos=False):
            now_s = time.monotonic()
            if last_s:
                longest_s = max(longest_s, now_s - last_s)
            else:
                send("f")
                await receive()
                now_s = time.monotonic()
            last_s = now_s
    return f"{longest_s:.6f}"
