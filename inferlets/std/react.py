"""Answer a question with tools that are called over HTTP: think, act, observe, until there is an answer (ReACT).

A tool is a path of the tool server. A call is a POST with the tool's arguments as JSON, and the reply is what the agent
observes. A call that fails is observed too, so that the model can do something else.

tartlet run --allow-http localhost:8080 inferlets/std/react.py --tools http://localhost:8080 \
    --question "What is the price of Karo?"
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from inferlet import Context, errors, http_post, send


def arguments() -> argparse.Namespace:
    """Parse the program's arguments."""
    parser = argparse.ArgumentParser(description="Answer a question with tools.")
    parser.add_argument("--question", required=True, help="what to answer")
    parser.add_argument("--tools", required=True, metavar="URL", help="address of the tool server")
    parser.add_argument("--most-calls", type=int, default=8, help="give up after so many calls (default: 8)")
    parser.add_argument("--secret", help="secret of the server that is sent as a bearer token")
    return parser.parse_args()


def call_of(text: str) -> tuple[str, dict[str, Any]] | None:
    """Return the tool and its arguments if a text of the model is a call, else None: then it is the answer."""
    try:
        told = json.loads(text)
    except ValueError:
        return None
    if not isinstance(told, dict) or not isinstance(told.get("name"), str):
        return None
    return told["name"], told.get("arguments", {})


async def observe(args: argparse.Namespace, name: str, given: dict[str, Any]) -> str:
    """Call a tool; return its reply, or what went wrong."""
    secrets = {"Authorization": f"Bearer {{{args.secret}}}"} if args.secret else {}
    try:
        reply = await http_post(f"{args.tools.rstrip('/')}/{name}", json=given, secrets=secrets, timeout_s=10)
        return reply.check().text()
    except (errors.RequestFailed, errors.Interrupted, errors.InvalidArgument) as e:
        return f"error: {e}"


async def main() -> str:
    """Let the model call tools until it answers. The result is the answer; each call and observation is a message."""
    args = arguments()
    async with Context() as ctx:
        ctx.chat(args.question)
        for _ in range(args.most_calls):
            text = await ctx.generate_until(max_tokens=128)
            call = call_of(text)
            if call is None:
                return text
            observed = await observe(args, *call)
            send(json.dumps({"call": call[0], "arguments": call[1], "observed": observed}))
            ctx.chat([{"role": "tool", "content": observed}])
    return f"no answer after {args.most_calls} calls"
