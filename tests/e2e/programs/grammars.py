"""Generates a text for each of many grammars, several at once, and sends each outcome."""

import asyncio
import json

from inferlet import Context, Grammar, Temperature, send
from inferlet.errors import GrammarRefused


async def main(args: list[str]) -> None:
    """The argument is JSON: `work`, a list of kinds and texts; prompt, seed, max_tokens, run_ahead and together."""
    given = json.loads(args[0])
    gate = asyncio.Semaphore(given["together"])

    async def one(at: int, kind: int, text: str) -> None:
        async with gate, Context(seed=given["seed"] + at, run_ahead=given["run_ahead"]) as ctx:
            ctx.fill(given["prompt"])
            sampler = Temperature(given["temperature"])
            most, skip = given["max_tokens"], given.get("skip_forced", False)
            written = ctx.generate(max_tokens=most, sampler=sampler, grammar=Grammar(kind, text), skip_forced=skip)
            try:
                async for _ in written:
                    pass
            except GrammarRefused as e:
                send(json.dumps({"at": at, "why": "refused", "text": str(e), "tokens": written.tokens}))
                return
            told = {"why": written.stopped_by, "text": written.text, "tokens": written.tokens}
            send(json.dumps({"at": at, "forced": written.num_forced, **told}))

    await asyncio.gather(*(one(at, kind, text) for at, (kind, text) in enumerate(given["work"])))
