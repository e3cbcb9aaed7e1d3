"""Batching policies under load (Pie, Table 5): 128 core-Wasm programs, 16 tokens each, run-ahead 0.

Only the policy differs. Throughput counts all tokens from the launch request to the last program's end. The policies
take turns, round by round. One load is over in half a second, so a round takes the median of three loads.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import tartlet
from bench.guests.build import build
from bench.harness import report
from bench.harness.intervals import median
from bench.harness.stack import running
from bench.product.common import install_uvloop
from bench.product.control import BATCHING

_FLAG = f"--{BATCHING}"
POLICIES = {
    "eager": [_FLAG, "eager"],
    "k-only, k=8": [_FLAG, "k-only", f"{_FLAG}-k", "8"],
    "t-only, t=16 ms": [_FLAG, "t-only", f"{_FLAG}-t-s", "0.016"],
    "adaptive": [_FLAG, "adaptive"],
}
DEMO_MODEL = Path(__file__).resolve().parents[1] / "models" / "demo"
PROMPT_TOKENS = 16
LOADS = 3  # in a round
OF_BEST, OVER_EAGER = 0.97, 5.0  # on a GPU: 15 times eager


async def tokens_per_s(client: tartlet.AsyncClient, guest: tartlet.Source, programs: int, tokens: int) -> float:
    """Run a load; tokens a second over all programs, from the request to the last end."""
    specs = [tartlet.LaunchSpec(source=guest, args=[str(PROMPT_TOKENS), str(tokens), "0", "0"])] * programs
    ended = 0
    start = time.perf_counter()
    async for _, event in client.run_many(specs):
        if (
            isinstance(event, tartlet.Message) and event.data == b"f"
        ):  # the guest waits for a word after its first token
            await client.send(event.program_id, b"go")
        elif isinstance(event, tartlet.Ended):
            if not event.success:
                raise RuntimeError(f"a program failed: {event.error}")
            ended += 1
        elif isinstance(event, tartlet.TartletError):
            raise event
    if ended != programs:
        raise RuntimeError(f"{ended} of {programs} programs ended")
    return programs * tokens / (time.perf_counter() - start)


async def measure(
    model: Path,
    programs: int,
    tokens: int,
    repeat: int,
    *,
    guest: Path | None = None,
    worker: Sequence[str] = (),
    loads: int = LOADS,
    policies: Sequence[str] = tuple(POLICIES),
) -> report.Report:
    """Make one table: a row a policy.

    Args:
        model: checkpoint directory.
        programs: at once.
        tokens: of each program.
        repeat: rounds.
        guest: the compiled program; None: it is compiled here.
        worker: flags of the worker.
        loads: of a policy in a round.
        policies: names in `POLICIES`; "eager" and "adaptive" are among them.
    """
    seen: dict[str, list[float]] = {name: [] for name in policies}
    with tempfile.TemporaryDirectory(prefix="tt-") as directory:
        source = tartlet.Source.from_file(guest or build(Path(directory))["decode"])
        for i in range(repeat):
            for name in policies:
                async with (
                    running(model=model, flags={"control": POLICIES[name], "worker": worker}) as address,
                    tartlet.AsyncClient(address) as client,
                ):
                    await tokens_per_s(client, source, 8, tokens)  # warm
                    speeds = [await tokens_per_s(client, source, programs, tokens) for _ in range(loads)]
                    seen[name].append(median(speeds))
                report.progress(f"batching: round {i + 1} of {repeat}, {name}: {seen[name][-1]:.0f} tokens/s")
    medians = {name: median(values) for name, values in seen.items()}
    best, eager, adaptive = max(medians.values()), medians["eager"], medians["adaptive"]
    title = f"Batching policies, {programs} programs of {tokens} tokens, model {model.name}"
    result = report.Report("batching", title, ["policy", "tokens/s", "of the best", "over eager"])
    result.rows = [(name, value, value / best, value / eager) for name, value in medians.items()]
    result.goals = [
        report.Goal("adaptive of the best", adaptive / best, OF_BEST, at_least=True),
        report.Goal("adaptive over eager", adaptive / eager, OVER_EAGER, at_least=True),
    ]
    result.series = [report.Series("tokens/s", list(medians), list(medians.values()))]
    result.y_label = "tokens/s"
    return result


def main() -> int:
    """Run the command line."""
    parser = report.parser("batching", __doc__)
    parser.add_argument(
        "--model", type=Path, default=DEMO_MODEL, metavar="DIR", help="checkpoint (default: the demo model)"
    )
    parser.add_argument(
        "--programs", type=report.positive, default=128, metavar="N", help="at once (default %(default)s)"
    )
    parser.add_argument(
        "--tokens", type=report.positive, default=16, metavar="N", help="of each program (default %(default)s)"
    )
    args = parser.parse_args()
    install_uvloop()
    return report.emit([asyncio.run(measure(args.model, args.programs, args.tokens, args.repeat))], args)


if __name__ == "__main__":
    sys.exit(main())
