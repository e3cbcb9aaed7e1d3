"""Answers a chat with the most probable of several answers that are generated side by side.

Every client of the OpenAI API can ask for it. The field `best_of` says how many answers to generate, 4 by default:

tartlet catalogue put best-of-n inferlets/std/best_of_n.py
curl http://127.0.0.1:8200/v1/chat/completions -H 'content-type: application/json' \
    -d '{"model": "demo/best-of-n", "messages": [{"role": "user", "content": "374+588="}], "best_of": 8}'
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from inferlet import Context, Sampler, Until, reply, usage
from inferlet.errors import InvalidArgument

MOST = 32
"""How many answers may be generated."""


class Answer(NamedTuple):
    """A whole answer and the mean log-probability of its tokens."""

    text: str
    score: float
    tokens: int
    reason: reply.Reason
    stop_text: str | None


async def main(args: list[str]) -> None:
    """Generate the answers, and send the best one."""
    request = await reply.request(args)
    asked = request.get("best_of", 4)
    if "messages" not in request or request.get("tools") or request.get("n", 1) > 1:
        reply.refuse("best-of-n answers chats without tools, with one choice.", param="messages")
        return
    if type(asked) is not int or not 1 <= asked <= MOST:
        reply.refuse(f"best_of: a whole number from 1 to {MOST}.", param="best_of")
        return
    async with reply.context(request) as ctx:
        ctx.chat(request["messages"])
        try:
            await ctx.flush()
        except (InvalidArgument, TypeError, ValueError) as e:
            reply.refuse(str(e), param="messages")
            return
        prompt = len(ctx)
        reply.usage(prompt, 0)
        answers = await asyncio.gather(*(generated(branch, request) for branch in ctx.fork(asked)))
        best = max(answers, key=lambda answer: answer.score)
        reply.delta(best.text)
        reply.finish(best.reason, stop_text=best.stop_text)
        cached = min(prompt, (await usage()).cached_tokens)
        reply.usage(prompt, sum(answer.tokens for answer in answers), cached_tokens=cached)


async def generated(ctx: Context, request: dict[str, Any]) -> Answer:
    """Generate one answer from a fork of the prompt."""
    sampler = Sampler(temperature=request.get("temperature", 1.0), top_p=request.get("top_p"))
    stop = Until(*request.get("stop", ()))
    generation = ctx.generate(stop, max_tokens=request.get("max_tokens", 256), sampler=sampler, logprobs=0)
    scores = [piece.logprob async for piece in generation]
    mean = sum(scores) / len(scores) if scores else 0.0
    reason: reply.Reason = "length" if generation.stopped_by == "length" else "stop"
    return Answer(generation.text, mean, len(generation.tokens), reason, generation.stop_text)
