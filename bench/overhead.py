"""What the layers around the engine cost a token (Pie 7.4, Tables 3 and 4).

The figure is the time per output token of programs over that of the bare loop of `bench engine` on the same weights:
88M parameters, random, bf16, one torch thread, prompt 128, 64 tokens. The programs wait for each other after their
first token, so that a round times decoding only; tokens that run-ahead had computed by then are not counted.

A round measures every variant, in an order that rotates from round to round, and the bare loop before and after each of
them. A variant's ratio is over the mean of these two. The table gives the median over the rounds with its bootstrap
interval of 95%. Beside it stands a ratio that other work on the machine touches less: wall time of decoding over the
engine's own `device_s` of the same seconds, and the share of those seconds in which the engine was idle.

The second table takes run-ahead away and samples in the program, from `get_next_dist`: what Pie's programs do. The
third takes the difference apart, by changing one thing at a time. The rows "TLS" run over TCP with mutual TLS, as a
cluster does; the others run over Unix sockets.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import tartlet
from bench.guests.build import build
from bench.harness import report
from bench.harness.intervals import bootstrap_median, median
from bench.harness.stack import connected
from bench.product.common import install_uvloop

PROMPT_TOKENS, NEW_TOKENS, RUN_AHEAD = 128, 64, 4
PROGRAMS = (1, 32)
SETTLE_S = 0.3
KINDS = ("Python", "core Wasm")
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
        """Measure seconds an output token of a batch."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{batch}\n".encode())
        return float(json.loads(await self._process.stdout.readline()))


@asynccontextmanager
async def bare_loop(checkpoint: Path) -> AsyncIterator[BareLoop]:
    """Start the process and wait until its model is loaded."""
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


@dataclass(frozen=True, slots=True)
class Variant:
    """One kind of program in one mode over one transport."""

    kind: str  # Python, core Wasm
    mode: str  # one of MODES
    tls: bool = False

    @property
    def label(self) -> str:
        """What a row is called."""
        return f"{self.kind}, TLS" if self.tls else self.kind


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement of a variant."""

    per_token_s: float
    bare_s: float  # a token of the bare loop, mean of before and after
    over_device: float  # wall time of decoding over the engine's device_s in the same time

    @property
    def ratio(self) -> float:
        """Time of a token over the bare loop's."""
        return self.per_token_s / self.bare_s


Seen = dict[tuple[Variant, int], list[Sample]]  # (variant, programs) -> one a round


async def device_s(client: tartlet.AsyncClient) -> float:
    """Seconds that the stack's engine has computed until now, as it says itself."""
    (engine,) = (await client.state()).control["engines"]
    return float(engine["device_s"])


async def decode(
    client: tartlet.AsyncClient,
    source: tartlet.Source,
    programs: int,
    mode: str,
    durability: str = "",
    *,
    prompt: int = PROMPT_TOKENS,
    tokens: int = NEW_TOKENS,
) -> tuple[float, float]:
    """Have `programs` programs decode `tokens` tokens side by side, behind `prompt` tokens each.

    Returns:
        Seconds an output token, and wall time over `device_s`.
    """
    run_ahead, own_sampling = MODES[mode]
    args = [str(n) for n in (prompt, tokens, run_ahead, int(own_sampling))]
    specs = [tartlet.LaunchSpec(source=source, args=args, durability=durability)] * programs
    waiting: list[str] = []
    start = last = computed_s = 0.0
    ended = 0
    async for _, event in client.run_many(specs):
        if isinstance(event, tartlet.Message) and event.data == b"f":
            waiting.append(event.program_id)
            if len(waiting) == programs:
                await asyncio.sleep(SETTLE_S)  # for what was queued ahead
                computed_s = await device_s(client)
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
    computed_s = await device_s(client) - computed_s
    return (last - start) / (tokens - 1 - run_ahead), (last - start) / computed_s


@asynccontextmanager
async def clients(checkpoint: Path, *, tls: bool) -> AsyncIterator[dict[bool, tartlet.AsyncClient]]:
    """Start the stacks that are measured: over sockets, and over TCP with mutual TLS if `tls`."""
    worker = ["--dtype", "bfloat16", "--max-batch-tokens", str(32 * PROMPT_TOKENS)]
    async with AsyncExitStack() as stacks:
        yield {
            secured: await stacks.enter_async_context(
                connected(tls=secured, model=checkpoint, flags={"worker": worker})
            )
            for secured in ((False, True) if tls else (False,))
        }


async def measure(repeat: int, modes: Sequence[str], *, tls: bool, first: int = 0) -> Seen:
    """Measure all rounds; the order is rotated by `first` in the first round, by one more in each that follows."""
    scratch = Path(tempfile.mkdtemp(prefix="tt-"))
    seen: Seen = {}
    variants = [Variant(kind, mode) for kind in KINDS for mode in modes]
    if tls:
        variants += [Variant(kind, modes[0], tls=True) for kind in KINDS]
    try:
        sources = {
            "Python": tartlet.Source.from_file(HERE / "guests" / "decode.py"),
            "core Wasm": tartlet.Source.from_file(build(scratch / "guests")["decode"]),
        }
        checkpoint = scratch / "llama-88m"
        async with bare_loop(checkpoint) as bare:
            shutil.copy(TOKENIZER, checkpoint)
            async with clients(checkpoint, tls=tls) as found:
                for v in variants:  # warms up: compiles, maps, fills caches
                    await decode(found[v.tls], sources[v.kind], 1, v.mode)
                for i in range(repeat):
                    turn = (first + i) % len(variants)
                    for n in PROGRAMS:
                        await bare.per_token_s(n)
                        before = await bare.per_token_s(n)
                        for v in variants[turn:] + variants[:turn]:
                            token_s, over_device = await decode(found[v.tls], sources[v.kind], n, v.mode)
                            after = await bare.per_token_s(n)
                            sample = Sample(token_s, (before + after) / 2, over_device)
                            seen.setdefault((v, n), []).append(sample)
                            before = after
                        told = ", ".join(f"{v.label} {v.mode} {seen[v, n][-1].ratio:.3f}" for v in variants)
                        report.progress(f"overhead: round {i + 1} of {repeat}, {n} programs: {told}")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return seen


def _compared(seen: Seen, name: str, title: str, mode: str) -> report.Report:
    columns = ["program", "programs", "ms a token", "bare loop ms", "ratio", "95% interval", "over device_s"]
    table = report.Report(name, title, [*columns, "engine idle %", "goal"])
    table.x_label, table.y_label = "programs", "time per token over the bare loop"
    lines: dict[str, list[float]] = {}
    for (v, n), samples in seen.items():
        if v.mode != mode:
            continue
        goal = None if v.tls else GOALS_OWN_SAMPLING[n] if mode == "own" else GOALS[v.kind, n]
        each = [s.ratio for s in samples]
        low, high = bootstrap_median(each)
        times = (median([s.per_token_s for s in samples]) * 1e3, median([s.bare_s for s in samples]) * 1e3)
        over = median([s.over_device for s in samples])
        interval = f"{low:.3f} to {high:.3f}"
        table.rows.append((v.label, n, *times, median(each), interval, over, 100 * (1 - 1 / over), goal or ""))
        lines.setdefault(v.label, []).append(median(each))
        if goal is not None:
            what = f"{v.label}, {n} program{'s' * (n > 1)}"
            table.goals.append(report.Goal(what, median(each), goal, at_least=False))
    table.series = [report.Series(label, [str(n) for n in PROGRAMS], values) for label, values in lines.items()]
    return table


PARTS = (
    ("bare loop", None, ("core Wasm", "ahead")),
    ("layers around it, queued ahead (core Wasm)", None, ("core Wasm", "ahead")),
    ("no run-ahead: each token awaited", ("core Wasm", "ahead"), ("core Wasm", "awaited")),
    ("distributions returned, sampled in the program", ("core Wasm", "awaited"), ("core Wasm", "own")),
    ("Python in the sandbox instead of C", ("core Wasm", "own"), ("Python", "own")),
)
"""What each line of the breakdown is the difference of; the first two are the bare loop and what a program adds."""


def _breakdown(seen: Seen) -> report.Report:
    table = report.Report("overhead-parts", "Where the time of a token goes", ["part", *(f"ms, {n}" for n in PROGRAMS)])
    for label, without, with_it in PARTS:
        row: list[str | float | int] = [label]
        for n in PROGRAMS:
            samples = seen[Variant(*with_it), n]
            if label == "bare loop":
                each = [s.bare_s for s in samples]
            elif without is None:
                each = [s.per_token_s - s.bare_s for s in samples]
            else:
                pairs = zip(seen[Variant(*without), n], samples, strict=True)
                each = [b.per_token_s - b.bare_s - a.per_token_s + a.bare_s for a, b in pairs]
            row.append(median(each) * 1e3)
        table.rows.append(row)
    return table


def tables(seen: Seen) -> Sequence[report.Report]:
    """Make the tables of the modes that were measured; the breakdown needs all of them."""
    found = {v.mode for v, _ in seen}
    made = []
    if "ahead" in found:
        made.append(_compared(seen, "overhead", "Time per output token, run-ahead 4, sampled on the device", "ahead"))
    if "own" in found:
        made.append(_compared(seen, "overhead-own", "The same without run-ahead, sampled by the program", "own"))
    return [*made, _breakdown(seen)] if found == MODES.keys() else made


def main() -> int:
    """Run the command line."""
    parser = report.parser("overhead", __doc__)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), help="only these (default: all)")
    parser.add_argument(
        "--turn",
        type=int,
        default=0,
        metavar="N",
        help="rotate the order of the first round by N (default %(default)s)",
    )
    parser.add_argument("--no-tls", action="store_true", help="leave out the rows over TCP with mutual TLS")
    args = parser.parse_args()
    install_uvloop()
    seen = asyncio.run(measure(args.repeat, list(dict.fromkeys(args.modes)), tls=not args.no_tls, first=args.turn))
    return report.emit(tables(seen), args)


if __name__ == "__main__":
    sys.exit(main())
