"""Answers a question with tools that the client calls: the program sends each call, and the client sends its result.

A call is a message of JSON, `{"name": ..., "arguments": {...}}`, as the model writes it. Nothing of the context is
computed twice while the client works.

tartlet run --interactive inferlets/std/client_tools.py --question "What is the price of Karo?"
"""

from __future__ import annotations

import argparse
import json

from inferlet import Context, receive, send


def arguments() -> argparse.Namespace:
    """Parse the program's arguments."""
    parser = argparse.ArgumentParser(description="Answer a question with tools of the client.")
    parser.add_argument("--question", required=True, help="what to answer")
    parser.add_argument("--most-calls", type=int, default=8, help="give up after so many calls (default: 8)")
    parser.add_argument("--max-tokens", type=int, default=96, help="length of a call or of the answer (default: 96)")
    return parser.parse_args()


def is_call(text: str) -> bool:
    """Return whether a text of the model calls a tool. Any other text is the answer."""
    try:
        told = json.loads(text)
    except ValueError:
        return False
    return isinstance(told, dict) and isinstance(told.get("name"), str)


async def main() -> str:
    """Send the model's calls until it answers; return the answer."""
    args = arguments()
    async with Context() as ctx:
        ctx.chat(args.question)
        for _ in range(args.most_calls):
            text = await ctx.generate_until(max_tokens=args.max_tokens)
            if not is_call(text):
                return text
            send(text)
            ctx.chat([{"role": "tool", "content": await receive()}])
    return f"no answer after {args.most_calls} calls"
