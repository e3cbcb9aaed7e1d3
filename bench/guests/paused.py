"""Generates as many tokens as its argument says, says so, and generates one more after a message."""

from __future__ import annotations

import sys

from inferlet import Context, receive, send


async def main() -> None:
    """Generate, wait, go on."""
    async with Context() as context:
        context.fill_tokens([10, 17, 24, 31])
        await context.generate_until(max_tokens=int(sys.argv[1]), eos=False)
        send("generated\n")
        await receive()
        await context.generate_until(max_tokens=1, eos=False)
        send("again\n")
