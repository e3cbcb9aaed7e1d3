"""Completes a prompt with bias, allowed tokens, penalties and log-probabilities; returns what it was told as JSON."""

from __future__ import annotations

import json

import inferlet

LETTERS = [*range(97, 123), 32]


async def main() -> str:
    async with inferlet.Context(seed=3) as ctx:
        ctx.fill("abcabc")
        generation = ctx.generate(
            max_tokens=24,
            sampler=inferlet.Temperature(0.9),
            eos=False,
            allowed=LETTERS,
            logit_bias={101: -100.0},
            logprobs=3,
            logprobs_of=[101],
            repetition_penalty=1.2,
            frequency_penalty=1.5,
            presence_penalty=0.5,
        )
        told = [(piece.token, sorted(piece.logprobs.items())) async for piece in generation]
        [fork] = ctx.fork()
        banned = [int(token) for token in generation.tokens]
        again = [p.token async for p in fork.generate(max_tokens=8, eos=False, logit_bias=dict.fromkeys(banned, -100))]
    return json.dumps([told, again])
