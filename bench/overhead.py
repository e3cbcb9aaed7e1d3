"""What the layers around the engine cost a token (Pie 7.4, Tables 3 and 4).

Time per output token of programs, over that of the bare loop of `bench engine` on the same weights: 88M parameters,
random, bf16, one torch thread, prompt 128, 64 tokens. Everything is paired and interleaved: a round measures the bare
loop, then each kind of program, at 1 and at 32 programs. The programs wait for each other after their first token, so
that a round times decoding only; tokens that run-ahead had computed by then are not counted.

The second table takes run-ahead away and samples in the program, from `get_next_dist`: what Pie's programs do. The
third takes the difference apart, by changing one thing at a time.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import tartlet
from bench.guests.build import build
from bench.harness import report
from bench.harness.intervals import median
from bench.harness.stack import running
from bench.product.common import install_uvloop

PROMPT_TOKENS, NEW_TOKENS, RUN_AHEAD = 128, 64, 4
PROGRAMS = (1, 32)
GOALS = {("Python", 1): 1.10, ("Python", 32): 1.05, ("core Wasm", 1): 1.05, ("core Wasm", 32): 1.03}
GOALS_OWN_SAMPLING = {1: 1.20, 32: 1.30}
MODES = {"ahead": (RUN_AHEAD, False), "awaited": (0, False), "own": (0, True)}
"""Run-ahead, and whether the program samples."""
HERE = Path(__file__).parent
TOKENIZER = HERE.parent / "models" / "demo" / "tokenizer.json"


class BareLoop:
    """The process of `bench.bare_loop`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def per_token_s(self, batch: int) -> float:
        """Seconds an output token of a batch."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{batch}\n".encode())
        return float(json.loads(await self._process.stdout.readline()))


@asynccontextmanager
async def bare_loop(checkpoint: Path) -> AsyncIterator[BareLoop]:
    """Start it and wait until its model is loaded."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.bare_loop", str(checkpoint), cwd=HERE.parent,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    if await process.stdout.readline() != b"ready\n":
        raise RuntimeError("the bare loop did not start")
    try:
        yield BareLoop(process)
    finally:
        process.kill()
        await process.wait()


async def per_token_s(
    client: tartlet.AsyncClient, source: tartlet.Source, programs: int, *, run_ahead: int, own_sampling: bool
) -> float:
    """Seconds an output token of `programs` programs that decode side by side."""
    args = [str(n) for n in (PROMPT_TOKENS, NEW_TOKENS, run_ahead, int(own_sampling))]
    specs = [tartlet.LaunchSpec(source=source, args=args)] * programs
    waiting: list[str] = []
    start = last = 0.0
    ended = 0
    async for _, event in client.run_many(specs):
        if isinstance(event, tartlet.Message) and event.data == b"f":
            waiting.append(event.program_id)
            if len(waiting) == programs:
                await asyncio.sleep(0.05 if programs == 1 else 0.3)  # for what was queued ahead
                start = time.perf_counter()
                await client.send_many([(program, b"go") for program in waiting])
        elif isinstance(event, tartlet.Message):
            last = time.perf_counter()
        elif isinstance(event, tartlet.Ended):
            ended += 1
            if not event.success:
                raise RuntimeError(f"a program failed: {event.error}")
        elif isinstance(event, tartlet.TartletError):
            raise event
    if ended != programs:
        raise RuntimeError(f"{ended} of {programs} programs ended")
    return (last - start) / (NEW_TOKENS - 1 - run_ahead)


Seen = dict[tuple[str, str, int], list[float]]  # (what, mode, programs) -> seconds a token, one a round


async def measure(repeat: int) -> Seen:
    """All rounds."""
    scratch = Path(tempfile.mkdtemp(prefix="tt-"))
    seen: Seen = {}
    try:
        sources = {
            "Python": tartlet.Source.from_file(HERE / "guests" / "decode.py"),
            "core Wasm": tartlet.Source.from_file(build(scratch / "guests")["decode"]),
        }
        checkpoint = scratch / "llama-88m"
        async with bare_loop(checkpoint) as bare:
            shutil.copy(TOKENIZER, checkpoint)
            worker = ["--dtype", "bfloat16", "--max-batch-tokens", str(32 * PROMPT_TOKENS)]
            async with (
                running(model=checkpoint, flags={"worker": worker}) as address,
                tartlet.AsyncClient(address) as client,
            ):
                for i in range(repeat + 1):  # the first round warms up
                    for n in PROGRAMS:
                        row = {("bare loop", "", n): await bare.per_token_s(n)}
                        for kind, source in sources.items():
                            for mode, (ahead, own) in MODES.items():
                                row[kind, mode, n] = await per_token_s(
                                    client, source, n, run_ahead=ahead, own_sampling=own
                                )
                        if i:
                            for key, value in row.items():
                                seen.setdefault(key, []).append(value)
                        told = ", ".join(f"{k[0]} {k[1]} {v * 1e3:.2f} ms" for k, v in row.items())
                        report.progress(f"overhead: round {i} of {repeat}, {n} programs: {told}")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return seen


def ratios(seen: Seen, kind: str, mode: str, programs: int) -> list[float]:
    """Each round's time over the bare loop's of the same round."""
    bare = seen["bare loop", "", programs]
    return [v / b for v, b in zip(seen[kind, mode, programs], bare, strict=True)]


def _compared(seen: Seen, name: str, title: str, mode: str) -> report.Report:
    columns = ["program", "programs", "ms a token", "bare loop ms", "ratio", "worst", "goal"]
    table = report.Report(name, title, columns, x_label="programs", y_label="time per token over the bare loop")
    for kind in ("Python", "core Wasm"):
        medians = []
        for n in PROGRAMS:
            goal = GOALS_OWN_SAMPLING[n] if mode == "own" else GOALS[kind, n]
            each = ratios(seen, kind, mode, n)
            medians.append(median(each))
            mine, bare = (median(seen[k]) * 1e3 for k in ((kind, mode, n), ("bare loop", "", n)))
            table.rows.append((kind, n, mine, bare, medians[-1], max(each), goal))
            table.goals.append(report.Goal(f"{kind}, {n} program{'s' * (n > 1)}", medians[-1], goal, at_least=False))
        table.series.append(report.Series(kind, [str(n) for n in PROGRAMS], medians))
    return table


PARTS = (
    ("bare loop", None, ("bare loop", "")),
    ("layers around it, queued ahead (core Wasm)", ("bare loop", ""), ("core Wasm", "ahead")),
    ("no run-ahead: each token awaited", ("core Wasm", "ahead"), ("core Wasm", "awaited")),
    ("distributions returned, sampled in the program", ("core Wasm", "awaited"), ("core Wasm", "own")),
    ("Python in the sandbox instead of C", ("core Wasm", "own"), ("Python", "own")),
)
"""What each line of the breakdown is the difference of."""


def _breakdown(seen: Seen) -> report.Report:
    table = report.Report("overhead-parts", "Where the time of a token goes", ["part", *(f"ms, {n}" for n in PROGRAMS)])
    for label, without, with_it in PARTS:
        row: list[str | float | int] = [label]
        for n in PROGRAMS:
            pairs = zip(seen[(*without, n)] if without else [0.0] * 999, seen[(*with_it, n)], strict=False)
            row.append(median([b - a for a, b in pairs]) * 1e3)
        table.rows.append(row)
    return table


def tables(seen: Seen) -> Sequence[report.Report]:
    """Run-ahead, own sampling, breakdown."""
    return (
        _compared(seen, "overhead", "Time per output token, run-ahead 4, sampled on the device", "ahead"),
        _compared(seen, "overhead-own", "The same without run-ahead, sampled by the program", "own"),
        _breakdown(seen),
    )


def main() -> int:
    """Command line."""
    args = report.parser("overhead", __doc__).parse_args()
    install_uvloop()
    return report.emit(tables(asyncio.run(measure(args.repeat))), args)


if __name__ == "__main__":
    sys.exit(main())
