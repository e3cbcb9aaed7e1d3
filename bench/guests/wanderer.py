"""Thinks, forks, waits for messages and calls a tool, round after round; what it returns depends on all of that.

A line `call N TEXT` is a call of the tool, which answers with a message. A line `wait N` asks for any message. The
first argument varies the program, the second is the number of rounds (default 3).
"""

from __future__ import annotations

import asyncio
import hashlib
import sys

from inferlet import Context, TopK, receive, send


async def main() -> str:
    """Return a digest of all that the program thought and was told."""
    variant, rounds = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3
    said: list[str] = []
    async with Context(seed=variant) as ctx:
        ctx.fill(f"Program {variant} has a prompt that takes some pages of the engine's memory. " * 2)
        for n in range(rounds):
            thought = await ctx.generate_until(max_tokens=12, sampler=TopK(20), eos=False)
            branches = ctx.fork(2)
            for k, branch in enumerate(branches):
                branch.fill(f" branch {k}:")
            texts = await asyncio.gather(
                *(branch.generate_until(max_tokens=6, sampler=TopK(20), eos=False) for branch in branches)
            )
            for branch in branches:
                branch.close()
            send(f"call {n} {len(thought)}\n")
            answer = await receive()
            send(f"wait {n}\n")
            word = await receive()
            ctx.fill(f" {answer} {word}")
            said += [thought, *texts, answer, word]
    return hashlib.sha256("\0".join(said).encode()).hexdigest()
