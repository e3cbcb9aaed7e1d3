"""Generate in a window of constant size: the first tokens and the latest ones are seen, and all others are dropped.

The first tokens are attention sinks, which keep the model stable (StreamingLLM). Memory and the time of a step stay
constant, up to the model's last position.

tartlet run inferlets/std/attention_sink.py --prompt "374+588=" --max-tokens 200 --sinks 4 --window 64
"""

from __future__ import annotations

import argparse

from inferlet import Context


async def main() -> None:
    """Print the text, then how many pages the context has at the end."""
    parser = argparse.ArgumentParser(description="Generate with attention sinks and a window.")
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--sinks", type=int, default=4)
    parser.add_argument("--window", type=int, default=64)
    args = parser.parse_args()

    async with Context() as ctx:
        ctx.fill(args.prompt)
        left, block = args.max_tokens, ctx.model.page_size
        while left > 0:
            generation = ctx.generate(max_tokens=min(block, left))
            async for piece in generation:
                print(piece, end="", flush=True)
            left -= len(generation.tokens)
            if generation.stopped_by != "length" or not ctx.room:
                break
            if args.sinks < len(ctx) - args.window:
                ctx.drop(range(args.sinks, len(ctx) - args.window))
        print(f"\n{ctx.num_pages} pages for {len(ctx)} tokens")
