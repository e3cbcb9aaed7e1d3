"""Completes a prompt with the sampler of its arguments; sends tokens and log-probabilities, returns the text."""

from __future__ import annotations

import sys

import inferlet


async def main() -> str:
    prompt, temperature, top_k, top_p, seed = sys.argv[1:6]
    sampler = inferlet.Sampler(float(temperature), int(top_k) or None, float(top_p), None, int(seed))
    async with inferlet.Context(seed=int(seed)) as ctx:
        ctx.fill(prompt)
        text = ""
        async for piece in ctx.generate(max_tokens=24, sampler=sampler, eos=False):
            inferlet.send(f"{piece.token} {piece.logprob!r};")
            text += piece
    return text
