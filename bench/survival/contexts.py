"""Long contexts on a real engine: what a token costs beside the device's own time, and what lost tokens cost.

*over device_s*: 8 programs with 32k tokens each decode on a small random model, whose step takes long for the attention
alone. The wall time is compared with the seconds that the engine computed meanwhile, and with that of short contexts.

*rebuilding*: a program generates 1,000 tokens one by one. Its worker is killed, and the next one computes the context
again. The seconds that its device takes for that are compared with those of a prefill of as many tokens.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tartlet
from bench.harness import report
from bench.harness.intervals import median
from bench.harness.stack import running_stack, until_engines
from bench.overhead import HERE, RUN_AHEAD, TOKENIZER, decode, device_s
from bench.product.common import install_uvloop
from tartlet.local import LocalStack

PROGRAMS = 8
CONTEXTS = (128, 32_768)
NEW_TOKENS = 64
GENERATED = 1000
PARTS = ("decoding", "rebuilding")
COLUMNS = ("ms a token", "over device_s")
GOAL_OVER_DEVICE = 1.05
GOAL_REBUILD = 1.5
NO_CACHE = ("--prefix-cache", "false")
"""A flag of control: the prompts are equal, and each is to be computed."""
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "intermediate_size": 64,
    "max_position_embeddings": 40_960,
}
"""Reads 256 bytes for each token of a context, so that a prefill of 32k tokens takes seconds."""
MIDDLE: dict[str, Any] = {
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "intermediate_size": 768,
}
"""Takes a few milliseconds for a token, so that 1,000 tokens take seconds."""


async def over_device(checkpoint: Path, contexts: Sequence[int], repeat: int) -> dict[int, list[tuple[float, float]]]:
    """Decode with each length of context; return seconds a token and wall time over `device_s`, by context."""
    worker = ["--dtype", "float32", "--max-batch-tokens", "4096"]
    flags = {"worker": worker}
    seen: dict[int, list[tuple[float, float]]] = {context: [] for context in contexts}
    source = tartlet.Source.from_file(HERE / "guests" / "decode.py")
    async with running_stack(model=checkpoint, flags=flags) as stack, tartlet.AsyncClient(stack.address) as client:
        await decode(client, source, 1, "ahead")
        for _ in range(repeat):
            for context in contexts:
                seen[context].append(await decode(client, source, PROGRAMS, "ahead", prompt=context, tokens=NEW_TOKENS))
                report.progress(f"contexts: {context} tokens: {seen[context][-1][1]:.3f} over device_s")
    return seen


async def rebuilding(checkpoint: Path, repeat: int) -> list[tuple[float, float]]:
    """Return the device's seconds to make generated tokens again, and to compute as many as a prompt, by round."""
    worker = ["--dtype", "float32", "--max-batch-tokens", "2048"]
    source = tartlet.Source.from_file(HERE / "guests" / "decode.py")
    found = []
    flags = {"worker": worker, "control": NO_CACHE}
    async with running_stack(model=checkpoint, flags=flags) as stack, tartlet.AsyncClient(stack.address) as client:
        await one(client, source, prompt=GENERATED, tokens=1)  # the first one of a size takes longer
        for _ in range(repeat):
            before_s = await device_s(client)
            await one(client, source, prompt=GENERATED, tokens=1)
            prefill_s = await device_s(client) - before_s
            rebuilt_s = await rebuilt(stack, client)
            found.append((rebuilt_s, prefill_s))
            report.progress(f"contexts: rebuilding took {rebuilt_s:.2f} s of the device, a prefill {prefill_s:.2f} s")
    return found


async def one(client: tartlet.AsyncClient, source: tartlet.Source, *, prompt: int, tokens: int) -> None:
    """Run one program to its end."""
    run = await client.run(
        spec=tartlet.LaunchSpec(source=source, args=[str(n) for n in (prompt, tokens, RUN_AHEAD, 0)])
    )
    async for event in run:
        if isinstance(event, tartlet.Message) and event.data == b"f":
            await client.send(run.program_id, b"go")
    assert run.ended is not None
    assert run.ended.success, run.ended.error


async def rebuilt(stack: LocalStack, client: tartlet.AsyncClient) -> float:
    """Have a program generate tokens, kill its worker, and return what the next one computes for one more token."""
    guest = tartlet.Source.from_file(HERE / "guests" / "paused.py")
    run = await client.run(spec=tartlet.LaunchSpec(source=guest, args=[str(GENERATED)]))
    computed_s = 0.0
    async for event in run:
        if not isinstance(event, tartlet.Message):
            continue
        if event.text == "generated\n":
            pid = stack.pid("worker")
            os.kill(pid, signal.SIGKILL)
            while stack.pid("worker") == pid:  # noqa: ASYNC110 - the stack starts another process
                await asyncio.sleep(0.05)
            await stack.until_serving("worker")
            await until_engines(client, 1)
            await client.send(run.program_id, b"go")
        elif event.text == "again\n":
            computed_s = await device_s(client)
    assert run.ended is not None
    assert run.ended.success, run.ended.error
    return computed_s


def decoding(seen: dict[int, list[tuple[float, float]]]) -> report.Report:
    """Make the table of decoding with each length of context."""
    made = report.Report("contexts", f"Decoding behind long contexts, {PROGRAMS} programs", ["context", *COLUMNS])
    for context, values in seen.items():
        ms, over = (median([value[i] for value in values]) for i in range(2))
        made.rows.append((f"{context} tokens", ms * 1e3, over))
    name = f"{PROGRAMS} programs with {context} tokens, over device_s"
    made.goals.append(report.Goal(name, over, GOAL_OVER_DEVICE, at_least=False))
    return made


def remaking(rebuilds: list[tuple[float, float]]) -> report.Report:
    """Make the table of contexts that are made again, in the device's seconds."""
    made = report.Report("rebuilding", f"{GENERATED} generated tokens, made again", ["what", "device ms", "ratio"])
    ratio = median([again / prefill for again, prefill in rebuilds])
    made.rows.append((f"a prefill of {GENERATED} tokens", median([prefill for _, prefill in rebuilds]) * 1e3, 1.0))
    made.rows.append(
        (f"{GENERATED} generated tokens made again", median([again for again, _ in rebuilds]) * 1e3, ratio)
    )
    made.goals.append(report.Goal("made again, over a prefill", ratio, GOAL_REBUILD, at_least=False))
    return made


async def measure(only: str, repeat: int) -> list[report.Report]:
    """Measure all of it, or one part of `PARTS`."""
    import torch  # takes seconds, which nobody wants to wait for --help

    from bench.product.worker import LLAMA_88M, random_checkpoint

    scratch = Path(tempfile.mkdtemp(prefix="tt-"))
    try:
        for name, changes in (("small", SMALL), ("middle", MIDDLE)):
            random_checkpoint(scratch / name, LLAMA_88M | changes, dtype=torch.float32)
            shutil.copy(TOKENIZER, scratch / name)
        made = []
        if only != "rebuilding":
            made.append(decoding(await over_device(scratch / "small", CONTEXTS, repeat)))
        if only != "decoding":
            made.append(remaking(await rebuilding(scratch / "middle", repeat)))
        return made
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def main() -> int:
    """Run the command line."""
    parser = report.parser("contexts", __doc__, repeat=1, plots=False)
    parser.add_argument("--only", choices=PARTS, default="", help="measure one part (default: both)")
    args = parser.parse_args()
    install_uvloop()
    return report.emit(asyncio.run(measure(args.only, args.repeat)), args)


if __name__ == "__main__":
    sys.exit(main())
