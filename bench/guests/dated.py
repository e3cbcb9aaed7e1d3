"""The decode loop of the benchmark of journals: a made-up prompt, then tokens, greedy; sends when it got each of them.

Arguments, all numbers, in this order: prompt tokens, tokens, run-ahead. A message is the guest's clock in nanoseconds,
which is the time at which the runtime took the token.
"""

from __future__ import annotations

import sys
import time

from inferlet import Context, Greedy, send


async def main() -> None:
    """Generate, and date every token."""
    prompt, tokens, ahead = (int(arg) for arg in sys.argv[1:])
    context = Context(run_ahead=ahead)
    context.fill_tokens([10 + i * 7 % 200 for i in range(prompt)])
    async for _ in context.generate(max_tokens=tokens, sampler=Greedy(), eos=False):
        send(str(time.time_ns()))
