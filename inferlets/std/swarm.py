"""A swarm of programs works on one task: each member proposes an answer, all hear all answers, and they vote (Swarm).

The program starts its members from its own source. They talk over a topic of their own: a member broadcasts its
proposal, and judges each proposal by the probability that its own view of the task gives it. The program awaits the
votes and returns the winner. A server that restricts topics or spawning must allow them.

tartlet run inferlets/std/swarm.py --task "374+588=" --members 4
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter

from inferlet import Context, Sampler, Subscription, broadcast, get_instance_id, receive, send, spawn, subscribe

VIEWS = ("", "Be brief. ", "Think step by step. ", "Check the result. ")
"""What a member reads before the task, by its number."""


def arguments() -> argparse.Namespace:
    """Parse the program's arguments."""
    parser = argparse.ArgumentParser(description="Have several programs agree on an answer.")
    parser.add_argument("--task", required=True, help="what to answer")
    parser.add_argument("--members", type=int, default=4, help="how many programs propose and vote (default: 4)")
    parser.add_argument("--max-tokens", type=int, default=32, help="length of a proposal (default: 32)")
    parser.add_argument("--member", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--topic", help=argparse.SUPPRESS)
    return parser.parse_args()


async def main() -> str:
    """Lead a swarm, or be one of its members."""
    args = arguments()
    return await (lead(args) if args.member is None else take_part(args))


async def lead(args: argparse.Namespace) -> str:
    """Start the members, and count their votes."""
    topic = f"swarm/{get_instance_id()}"
    common = ["--task", args.task, "--members", str(args.members), "--max-tokens", str(args.max_tokens)]
    members = await asyncio.gather(
        *(spawn(args=[*common, "--topic", topic, "--member", str(number)]) for number in range(args.members))
    )
    await asyncio.gather(*(anext(aiter(member)) for member in members))  # each has subscribed
    await asyncio.gather(*(member.send("go") for member in members))
    votes = Counter(await asyncio.gather(*(member.result() for member in members)))
    winner, count = min(votes.items(), key=lambda vote: (-vote[1], vote[0]))
    send(json.dumps({"votes": dict(sorted(votes.items())), "members": [member.id for member in members]}))
    return f"{winner} ({count} of {args.members} votes)"


async def take_part(args: argparse.Namespace) -> str:
    """Propose an answer, hear the others', and return the one that this member finds most probable."""
    async with subscribe(args.topic) as proposals, Context(seed=args.member) as ctx:
        send("ready")
        await receive()  # all members have subscribed
        ctx.fill(VIEWS[args.member % len(VIEWS)] + args.task)
        await ctx.flush()
        (draft,) = ctx.fork(1)
        async with draft:
            own = await draft.generate_until(max_tokens=args.max_tokens, sampler=Sampler(temperature=0.7))
        await broadcast(args.topic, json.dumps([args.member, own]))
        heard = await all_of(proposals, args.members)
        return await best(ctx, heard)


async def all_of(proposals: Subscription, count: int) -> list[tuple[int, str]]:
    """Hear one proposal of each member, in the order of the members."""
    heard: dict[int, str] = {}
    while len(heard) < count:
        member, text = json.loads(await proposals.receive())
        heard[member] = text
    return sorted(heard.items())


async def best(ctx: Context, heard: list[tuple[int, str]]) -> str:
    """Return the proposal with the greatest probability for each of its tokens."""
    scored = []
    for _, text in heard:
        logprobs = await ctx.score(text) if text else [-1e9]
        scored.append((sum(logprobs) / len(logprobs), text))
    return max(scored)[1]
