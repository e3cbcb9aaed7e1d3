"""What a grammar costs a token beside the engine's step, and how many tokens take no step as a grammar forces them.

*Cost*: the torch engine runs in the bare loop: 88M parameters, random, one thread, 32 sequences. Each follows a JSON
schema, or asks for a log-probability (which takes the same way through the sampler without a grammar), or samples
plainly. The kinds take turns of a few steps in one run. The cost is a turn's time over that of the plain turn.

*Forced tokens*: a token is forced if the grammar allows no other. A program on a stack of its own generates records
with the demo model, token by token and with `skip_forced`, with steps queued ahead and without.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
import torch

import tartlet
from bench.engine_loop import BareLoop
from bench.harness import report
from bench.harness.dtypes import quick_dtype
from bench.harness.stack import running_stack
from bench.overhead import TOKENIZER
from bench.product.common import Sample, abi, install_uvloop
from bench.product.worker import LLAMA_88M, Engine, EngineOptions, load_engine, random_checkpoint

BATCH = 32
PROMPT = 8
STEPS = 4
"""Of a turn."""
GOAL_COST = 0.05
GUEST = Path(__file__).resolve().parents[1] / "guests" / "records.py"
WAYS: Final = {
    "a step for each, 4 ahead": ("4", "0"),
    "a step for each, none ahead": ("0", "0"),
    "forced ones skipped, 4 ahead": ("4", "1"),
    "forced ones skipped, none ahead": ("0", "1"),
}
"""How a program generates: arguments of the guest."""
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

    def __init__(self, engine: Engine, sizes: tuple[int, int, int], place: int, first: bytes, later: bytes) -> None:
        super().__init__(engine, *sizes, place)
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


@dataclass
class Seen:
    """What one kind of samples took and gave."""

    turns_s: list[float] = field(default_factory=list)
    turns_cpu_s: list[float] = field(default_factory=list)  # of this process, its threads of masks included
    tokens: list[np.ndarray] = field(default_factory=list)  # [BATCH] of each step


def bench(engine: Engine, turns: int) -> tuple[dict[str, Seen], dict[str, tuple[int, int]]]:
    """Run all kinds in turns; return what was seen of each, and the forced tokens of each grammar."""
    prompts = np.random.default_rng(0).integers(0, 256, (BATCH, PROMPT)).tolist()
    sizes = (BATCH, PROMPT, tokens_of(turns))
    engine.reset()
    loops: dict[str, BareLoop] = {"plain": BareLoop(engine, *sizes)}
    loops["a log-probability"] = OptionsLoop(engine, sizes, 1, *[packed(top=1)] * 2)
    for number, (name, schema) in enumerate(SCHEMAS.items(), start=1):
        define(engine, number, schema)
        loops[name] = OptionsLoop(engine, sizes, 1 + number, packed(grammar=number), packed(grammar=0))
    seen = {name: Seen(tokens=[loop.begin(prompts)]) for name, loop in loops.items()}
    order = list(loops)
    for turn in range(turns + 1):
        report.progress(f"grammars: turn {turn} of {turns}" if turn else "grammars: warming up")
        for name in order:
            start_s, start_cpu_s = time.perf_counter(), time.process_time()
            seen[name].tokens += [loops[name].go_on() for _ in range(STEPS)]
            if turn:
                seen[name].turns_s.append(time.perf_counter() - start_s)
                seen[name].turns_cpu_s.append(time.process_time() - start_cpu_s)
        order.reverse()
    fixed = {
        name: forced(engine, number, np.stack(seen[name].tokens, 1).tolist())
        for number, name in enumerate(SCHEMAS, start=1)
    }
    return seen, fixed


def tokens_of(turns: int) -> int:
    """Return how many tokens a sequence has after so many turns."""
    return 1 + STEPS * (turns + 1)


def tabulated(seen: dict[str, Seen], fixed: dict[str, tuple[int, int]]) -> report.Report:
    """Make the table of costs. Ratios are taken turn by turn."""
    title = f"Samples that follow a grammar, batch {BATCH}, 88M parameters, {quick_dtype()}, one thread"
    made = report.Report(
        "grammars", title, ["samples", "step ms", "us a token", "cost %", "cost in CPU %", "forced tokens %"]
    )
    plain, plain_cpu = seen["plain"].turns_s, seen["plain"].turns_cpu_s
    for name, of in seen.items():
        ratio = statistics.median(a / b for a, b in zip(of.turns_s, plain, strict=True))
        extra_s = statistics.median(a - b for a, b in zip(of.turns_s, plain, strict=True)) / STEPS
        share = 100 * fixed[name][0] / fixed[name][1] if name in fixed else ""
        step_ms = statistics.median(of.turns_s) / STEPS * 1e3
        cpu = statistics.median(a / b for a, b in zip(of.turns_cpu_s, plain_cpu, strict=True))
        made.rows.append((name, step_ms, extra_s / BATCH * 1e6, 100 * (ratio - 1), 100 * (cpu - 1), share))
        if name in fixed:
            made.goals.append(report.Goal(f"cost of {name}, over a step", ratio - 1, GOAL_COST, at_least=False))
    return made


async def skipped(repeat: int) -> report.Report:
    """Generate records in all ways, in turns.

    Raises:
        RuntimeError: a program failed, or gave other tokens than the others.
    """
    title = "Records by a JSON schema, one program, demo model"
    made = report.Report(
        "forced", title, ["tokens", "tokens of the text", "without a step", "steps a token", "ms a token"]
    )
    source = tartlet.Source.from_file(GUEST)
    took: dict[str, list[float]] = {way: [] for way in WAYS}
    told: dict[str, tuple[int, int]] = {}
    digests: set[int] = set()
    async with running_stack(model=TOKENIZER.parent) as stack, tartlet.AsyncClient(stack.address) as client:
        order = list(WAYS)
        for turn in range(repeat + 1):
            for way in order:
                start_s = time.perf_counter()
                run = await client.run(spec=tartlet.LaunchSpec(source=source, args=list(WAYS[way]), durable=False))
                ended = await run.wait()
                if not ended.success or ended.result is None:
                    raise RuntimeError(f"a program failed: {ended.error}")
                if turn:
                    took[way].append(time.perf_counter() - start_s)
                tokens, num_forced, digest = json.loads(ended.result)
                told[way] = tokens, num_forced
                digests.add(digest)
            order.reverse()
    if len(digests) != 1:
        raise RuntimeError(f"the tokens differ: {told}")
    for way, (tokens, num_forced) in told.items():
        ms = statistics.median(took[way]) / tokens * 1e3
        made.rows.append((way, tokens, num_forced, (tokens - num_forced) / tokens, ms))
    made.notes.append("all texts are equal, token by token")
    return made


def main() -> int:
    """Run the command line."""
    parser = report.parser("grammars", __doc__, repeat=6, plots=False)
    args = parser.parse_args()
    install_uvloop()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        path = random_checkpoint(Path(scratch), LLAMA_88M | {"eos_token_id": 2}, dtype=torch.bfloat16)
        shutil.copy(TOKENIZER, path)
        loops = 2 + len(SCHEMAS)
        options = EngineOptions(
            dtype=quick_dtype(),
            num_pages=loops * BATCH * -(-(PROMPT + tokens_of(args.repeat)) // 16),
            num_embeds=loops * BATCH * (PROMPT + 2),
            num_slots=loops * BATCH,
            max_batch_tokens=BATCH * PROMPT,
        )
        engine = load_engine(path, options, kernels="auto", threads=1, batch_invariant=False)
        seen, fixed = bench(engine, args.repeat)
    return report.emit([tabulated(seen, fixed), asyncio.run(skipped(args.repeat))], args)


if __name__ == "__main__":
    sys.exit(main())
