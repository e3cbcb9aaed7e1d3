"""Completes the prompt in its argument, sends and prints the text, and fails with prompt and text."""

from __future__ import annotations

import sys

import inferlet


async def main() -> None:
    prompt = sys.argv[1]
    async with inferlet.Context(seed=1) as ctx:
        ctx.fill(prompt)
        text = ""
        async for piece in ctx.generate(max_tokens=24, sampler=inferlet.Sampler(1.0), eos=False):
            text += piece
    inferlet.send(text)
    print(f"secret print of {text}")  # noqa: T201 - a program prints
    raise ValueError(f"secret failure after {prompt} {text}")
