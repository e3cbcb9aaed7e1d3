"""Decode greedily by Jacobi iteration: guess a block of tokens, and let each pass correct all of them at once.

A pass computes the whole block. Tokens at its beginning that no longer change are accepted. What the model chose behind
them is the next guess. The tokens are exactly those of greedy decoding.

tartlet run inferlets/std/jacobi.py --prompt "374+588=" --max-tokens 32 --block 4
"""

from __future__ import annotations

import argparse

from inferlet import Context, detokenize


async def main() -> None:
    """Print the completion, and in how many forward passes it was decoded."""
    parser = argparse.ArgumentParser(description="Complete a text by Jacobi decoding.")
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--block", type=int, default=4)
    args = parser.parse_args()

    async with Context() as ctx:
        ctx.fill(args.prompt)
        await ctx.flush()
        prompt, passes = len(ctx), 0
        end = min(prompt + args.max_tokens, ctx.model.max_position)
        guess = ctx.tokens[-1:] * args.block
        while len(ctx) < end:
            verified = await ctx.propose(guess[: end - len(ctx) - 1])
            passes += 1
            taken = ctx.accept(verified)
            if taken[-1] in ctx.model.stop_tokens:
                break
            corrected = [choice.token for choice in verified.choices[len(taken) :]]
            guess = corrected + taken[-1:] * (args.block - len(corrected))
        print(await detokenize(ctx.tokens[prompt:]))
        print(f"{len(ctx) - prompt} tokens in {passes} passes")
