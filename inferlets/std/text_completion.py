"""Complete a text, or answer a chat message, token by token.

tartlet run inferlets/std/text_completion.py --prompt "374+588=" --max-tokens 64
"""

from __future__ import annotations

import argparse

from inferlet import Context, Sampler, Stop, Until, get_model


def arguments() -> argparse.Namespace:
    """Parse the program's arguments."""
    parser = argparse.ArgumentParser(description="Complete a text.")
    parser.add_argument("--prompt", required=True, help="the text to continue")
    parser.add_argument("--max-tokens", type=int, default=64, help="the most tokens to generate (default: 64)")
    parser.add_argument("--temperature", type=float, help="0 or left out takes the most probable token")
    parser.add_argument("--top-k", type=int, help="sample among the k most probable tokens")
    parser.add_argument("--top-p", type=float, help="sample among the tokens that together reach p")
    parser.add_argument("--min-p", type=float, help="sample among tokens at least p times as probable as the best")
    parser.add_argument("--seed", type=int, help="the same seed gives the same text")
    parser.add_argument("--stop", action="append", default=[], help="end before this string (may be given again)")
    parser.add_argument("--chat", action="store_true", help="the prompt is a message in the model's chat format")
    return parser.parse_args()


async def main() -> None:
    """Print the completion as it is generated."""
    args = arguments()
    sampler = Sampler(args.temperature, args.top_k, args.top_p, args.min_p, args.seed)
    stop: Stop = Until(*args.stop)
    async with Context(await get_model()) as ctx:
        if args.chat:
            ctx.chat(args.prompt)
        else:
            ctx.fill(args.prompt)
        async for piece in ctx.generate(stop, max_tokens=args.max_tokens, sampler=sampler):
            print(piece, end="", flush=True)
    print()
