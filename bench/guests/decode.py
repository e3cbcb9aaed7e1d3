"""The decode loop of the overhead benchmark as a Python inferlet: a made-up prompt, then tokens, greedy.

Arguments, all numbers, in this order: prompt tokens, tokens, run-ahead, 1 to sample in the program from get_next_dist.
Sends "f" when it has the first token, waits for a message, goes on, and sends "l" with the last.
"""

from __future__ import annotations

import sys

from inferlet import Context, Greedy, receive, send


async def main() -> None:
    """Generate, and say when."""
    prompt, tokens, ahead, own_sampling = (int(arg) for arg in sys.argv[1:])
    context = Context(run_ahead=ahead)
    context.fill_tokens([10 + i * 7 % 200 for i in range(prompt)])
    sampler = (lambda dist: dist.max_index()) if own_sampling else Greedy()
    first = True
    async for _ in context.generate(max_tokens=tokens, sampler=sampler, eos=False):
        if first:
            first = False
            send("f")
            await receive()
    send("l")
