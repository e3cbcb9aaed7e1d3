"""Decode greedily with drafts that the text itself suggests (speculation by prompt lookup).

What followed the last words earlier in the text is proposed as the next tokens. One forward pass verifies them all, so
text that repeats itself takes fewer passes. The tokens are exactly those of greedy decoding.

tartlet run inferlets/std/prompt_lookup.py --prompt "374+588=962. 374+588=" --max-tokens 32
"""

from __future__ import annotations

import argparse

from inferlet import Context, detokenize


def lookup(tokens: list[int], length: int, longest: int = 3) -> list[int]:
    """Return up to `length` tokens that followed the latest earlier occurrence of the last tokens."""
    for size in range(min(longest, len(tokens) - 1), 0, -1):
        tail = tokens[-size:]
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start : start + size] == tail:
                return tokens[start + size : start + size + length]
    return []


async def main() -> None:
    """Print the completion, and in how many forward passes it was decoded."""
    parser = argparse.ArgumentParser(description="Complete a text, drafting from the text itself.")
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--drafts", type=int, default=6)
    args = parser.parse_args()

    async with Context() as ctx:
        ctx.fill(args.prompt)
        await ctx.flush()
        prompt, passes = len(ctx), 0
        end = min(prompt + args.max_tokens, ctx.model.max_position)
        while len(ctx) < end:
            most = min(args.drafts, end - len(ctx) - 1)
            verified = await ctx.propose(lookup(ctx.tokens, most))
            passes += 1
            if ctx.accept(verified)[-1] in ctx.model.stop_tokens:
                break
        print(await detokenize(ctx.tokens[prompt:]))
        print(f"{len(ctx) - prompt} tokens in {passes} passes")
