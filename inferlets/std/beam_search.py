"""Find the most probable continuations of a prompt by beam search. Beams share the pages of what they have in common.

tartlet run inferlets/std/beam_search.py --prompt "374+588=" --beams 4 --max-tokens 16
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
from dataclasses import dataclass
from math import log

from inferlet import Context, detokenize


@dataclass
class Beam:
    """A context, the log-probability of its tokens, and whether it has ended with a stop token."""

    ctx: Context
    score: float = 0.0
    ended: bool = False


async def widened(beams: list[Beam], width: int) -> list[Beam]:
    """Return the best beams with one token more. A beam that is continued once keeps its context; others are forked."""
    living = [beam for beam in beams if not beam.ended]
    dists = await asyncio.gather(*(beam.ctx.next_dist(top_k=width) for beam in living))
    options = [(beam.score, beam, -1) for beam in beams if beam.ended]
    for beam, dist in zip(living, dists, strict=True):
        pairs = zip(dist.tokens, dist.probs, strict=True)
        options += [(beam.score + log(prob), beam, token) for token, prob in pairs if prob > 0]
    chosen = heapq.nlargest(width, options, key=lambda option: option[0])
    copies = {id(beam): sum(other is beam for _, other, _ in chosen) for beam in beams}
    spare = {id(beam): beam.ctx.fork(copies[id(beam)] - 1) for beam in living if copies[id(beam)] > 1}
    for beam in beams:
        if not copies[id(beam)]:
            beam.ctx.close()
    kept = []
    for score, beam, token in chosen:
        ctx = spare[id(beam)].pop() if spare.get(id(beam)) else beam.ctx
        if token >= 0:
            ctx.fill_tokens([token])
        kept.append(Beam(ctx, score, beam.ended or token in ctx.model.stop_tokens))
    return kept


async def main() -> None:
    """Print the best continuations with their log-probabilities, the best one first."""
    parser = argparse.ArgumentParser(description="Search for the most probable continuations.")
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=16)
    args = parser.parse_args()

    root = Context()
    root.fill(args.prompt)
    await root.flush()
    prompt, beams = len(root), [Beam(root)]
    for _ in range(min(args.max_tokens, root.room)):
        beams = await widened(beams, args.beams)
        if all(beam.ended for beam in beams):
            break
    for beam in beams:
        await beam.ctx.flush()
        print(f"{beam.score:.3f} {await detokenize(beam.ctx.tokens[prompt:])}")
