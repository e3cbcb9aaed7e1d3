"""Answers messages with their count and sum, and begins its next run after every so many of them."""

from __future__ import annotations

import sys

import inferlet


async def main(args: list[str]) -> str:  # noqa: RET503 - continue_as_new doesn't return
    """`args`: messages of a run, messages in all, and the state: messages so far, their sum, runs."""
    assert sys.argv[1:] == args, "each run has the arguments that the run before gave it"
    every, last, count, total, runs = (int(arg) for arg in args)
    async with inferlet.Context(seed=1) as ctx:
        ctx.fill("some pages to hold")
        await ctx.generate_until(max_tokens=2, eos=False)
        for _ in range(every):
            total += int(await inferlet.receive())
            count += 1
            inferlet.send(f"{count} {total}\n")
            if count == last:
                return f"{total} in {runs} runs"
        inferlet.continue_as_new([str(n) for n in (every, last, count, total, runs + 1)])
