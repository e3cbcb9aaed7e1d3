"""Write several continuations of one prompt at once. Forks share the prompt's KV pages and run in the same batches.

tartlet run inferlets/std/fork.py --prompt "374+588=" --branches 4 --temperature 0.8
"""

from __future__ import annotations

import argparse
import asyncio

from inferlet import Context, Temperature


async def main() -> None:
    """Print one line for each branch."""
    parser = argparse.ArgumentParser(description="Continue a prompt several times.")
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--branches", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int)
    args = parser.parse_args()

    async with Context(seed=args.seed) as ctx:
        ctx.fill(args.prompt)
        forks = ctx.fork(args.branches)
        sampler = Temperature(args.temperature)
        texts = await asyncio.gather(*(f.generate_until(max_tokens=args.max_tokens, sampler=sampler) for f in forks))
        for number, text in enumerate(texts, start=1):
            print(f"{number}: {text}")
