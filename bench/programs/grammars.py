"""What a grammar costs a token beside the engine's step, and how many tokens a grammar forces.

The torch engine runs in the bare loop: 88M parameters, random, one thread, 32 sequences. Each
follows a JSON schema, or asks for a log-probability (which takes the same way through the sampler without a grammar),
or samples plainly. The variants take turns. The cost is the step's time with a grammar over that of the plain step.

A token is forced if the grammar allows no other. Such tokens could be appended without a step of their own; the engine
takes a step for each token, so none is.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import torch

from bench.engine_loop import BareLoop, Timing
from bench.harness import report
from bench.harness.dtypes import quick_dtype
from bench.overhead import TOKENIZER
from bench.product.common import Sample, abi
from bench.product.worker import LLAMA_88M, Engine, EngineOptions, load_engine, random_checkpoint

BATCH = 32
PROMPT = 32
GOAL_COST = 0.05
_COMPILES_S = 60.0
SCHEMAS: Final = {
    "numbers": {"type": "array", "items": {"type": "integer"}, "minItems": 1000},
    "records": {
        "type": "array",
        "minItems": 1000,
        "items": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 12},
                "colour": {"enum": ["red", "green", "blue"]},
                "count": {"type": "integer", "minimum": 0, "maximum": 99},
                "in_stock": {"type": "boolean"},
            },
            "required": ["name", "colour", "count", "in_stock"],
            "additionalProperties": False,
        },
    },
}
"""Texts that don't end within a run."""


class OptionsLoop(BareLoop):
    """The bare loop with the same options at every sample, and others at the first ones."""

    def __init__(self, engine: Engine, batch: int, prompt: int, new_tokens: int, first: bytes, later: bytes) -> None:
        super().__init__(engine, batch, prompt, new_tokens)
        self._first, self._later = first, later

    def sample(self, embed: np.ndarray, slot: np.ndarray, *, first: bool) -> Sample:
        """Return the sample batch of a step, with options."""
        options, count = self._first if first else self._later, len(slot)
        return replace(
            super().sample(embed, slot, first=first),
            with_options=np.arange(count, dtype=np.int32),
            options=np.frombuffer(options * count, np.uint8),
            options_indptr=np.arange(count + 1, dtype=np.int32) * len(options),
        )


def packed(*, top: int = 0, grammar: int | None = None) -> bytes:
    """Return the options of a sample: log-probabilities to tell, or a grammar's number, 0 for the one it follows."""
    head = np.zeros(1, abi.SAMPLE_OPTIONS)
    head["top"], head["repetition"] = top, 1.0
    if grammar is None:
        return head.tobytes()
    head["flags"] = abi.SampleFlag.GRAMMAR
    return head.tobytes() + grammar.to_bytes(4, "little")


def define(engine: Engine, number: int, schema: object) -> None:
    """Have the engine compile a JSON schema.

    Raises:
        RuntimeError: the engine has no grammars, or refuses this one.
    """
    if engine.grammars is None:
        raise RuntimeError("the engine has no grammars: is llguidance installed?")
    done, outcomes = threading.Event(), []

    def told(_number: int, error: Exception | None) -> None:
        outcomes.append(error)
        done.set()

    engine.grammars.define(number, abi.GrammarKind.JSON_SCHEMA, json.dumps(schema).encode(), told)
    if not done.wait(_COMPILES_S) or outcomes[0] is not None:
        raise RuntimeError(f"the grammar was refused: {outcomes}")


def forced(engine: Engine, number: int, tokens: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Return how many tokens of texts their grammar forced, and how many tokens the texts have."""
    assert engine.grammars is not None
    count = total = 0
    for text in tokens:
        matcher = engine.grammars.start(number)
        assert matcher is not None
        for token in text:
            count += _only(matcher.compute_bitmask()) == token
            total += 1
            matcher.consume_token(token)
    return count, total


def _only(mask: bytes) -> int:
    """Return the one token of a mask; -1 if there are several."""
    bits = np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little"))
    return int(bits[0]) if len(bits) == 1 else -1


def bench(engine: Engine, new_tokens: int, repeat: int) -> tuple[dict[str, list[Timing]], dict[str, tuple[int, int]]]:
    """Run all variants in turns; return their timings, and the forced tokens of each grammar."""
    prompts = np.random.default_rng(0).integers(0, 256, (BATCH, PROMPT)).tolist()
    sizes = (BATCH, PROMPT, new_tokens)
    loops = {"plain": BareLoop(engine, *sizes), "a log-probability": OptionsLoop(engine, *sizes, *[packed(top=1)] * 2)}
    for number, (name, schema) in enumerate(SCHEMAS.items(), start=1):
        define(engine, number, schema)
        loops[name] = OptionsLoop(engine, *sizes, packed(grammar=number), packed(grammar=0))
    seen: dict[str, list[Timing]] = {name: [] for name in loops}
    order = list(loops)
    for turn in range(repeat + 1):
        report.progress(f"grammars: turn {turn} of {repeat}" if turn else "grammars: warming up")
        for name in order:
            timing = loops[name].run(prompts)
            if turn:
                seen[name].append(timing)
        order.reverse()
    fixed = {name: forced(engine, number, seen[name][0].tokens[:4]) for number, name in enumerate(SCHEMAS, start=1)}
    return seen, fixed


def tabulated(seen: dict[str, list[Timing]], fixed: dict[str, tuple[int, int]]) -> report.Report:
    """Make the table. Ratios are taken turn by turn."""
    title = f"Samples that follow a grammar, batch {BATCH}, 88M parameters, {quick_dtype()}, one thread"
    made = report.Report("grammars", title, ["samples", "step ms", "us a token", "cost %", "forced tokens %"])
    for name, timings in seen.items():
        ratio = _over(timings, seen["plain"], lambda t: t.per_token_s)
        step_s = statistics.median(t.per_token_s for t in timings)
        extra_us = (step_s - statistics.median(t.per_token_s for t in seen["plain"])) / BATCH * 1e6
        share = 100 * fixed[name][0] / fixed[name][1] if name in fixed else ""
        made.rows.append((name, step_s * 1e3, extra_us, 100 * (ratio - 1), share))
        if name in fixed:
            made.goals.append(report.Goal(f"cost of {name}, over a step", ratio - 1, GOAL_COST, at_least=False))
    made.notes.append("tokens forced without a step: none; the engine takes a step for each token")
    return made


def _over(some: Sequence[Timing], others: Sequence[Timing], of: Callable[[Timing], float]) -> float:
    return statistics.median(of(a) / of(b) for a, b in zip(some, others, strict=True))


def main() -> int:
    """Run the command line."""
    parser = report.parser("grammars", __doc__, plots=False)
    parser.add_argument("--new-tokens", type=report.positive, default=48, metavar="N", help="tokens (default 48)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        path = random_checkpoint(Path(scratch), LLAMA_88M | {"eos_token_id": 2}, dtype=torch.bfloat16)
        shutil.copy(TOKENIZER, path)
        pages = BATCH * -(-(PROMPT + args.new_tokens) // 16)
        options = EngineOptions(
            dtype=quick_dtype(), num_pages=pages, num_embeds=BATCH * (PROMPT + 2), max_batch_tokens=4096
        )
        engine = load_engine(path, options, kernels="auto", threads=1, batch_invariant=False)
        seen, fixed = bench(engine, args.new_tokens, args.repeat)
    return report.emit([tabulated(seen, fixed)], args)


if __name__ == "__main__":
    sys.exit(main())
