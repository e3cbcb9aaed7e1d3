"""How many calls programs make for a generated token, as Figure 11 of the Pie paper counts them.

Programs of `inferlets/std` and an agent run on a real stack with the demo model. Each is bundled with a module that
counts its calls and its tokens, in the sandbox. As in the paper, calls that name a command queue belong to the
inference layer, and all others to the control layer. Of a beam search, the tokens of the best beam count.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

import tartlet
from bench.harness import report
from bench.harness.stack import running_stack
from bench.product.common import Op, install_uvloop
from tools.calls.registry import CALLS

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "demo"
GUESTS = ROOT / "bench" / "guests"
STD = ROOT / "inferlets" / "std"
PROMPT = ("--prompt", "374+588=")


class Technique(NamedTuple):
    """A program, its arguments, the tokens that it gives (0: those that it takes), and what the paper has for it."""

    name: str
    source: Path
    args: tuple[str, ...] = ()
    tokens: int = 0
    paper: tuple[float, float] | None = None  # calls a token: of the inference layer and of the control layer


TECHNIQUES: Final = (
    Technique("text completion", STD / "text_completion.py", (*PROMPT, "--max-tokens", "64"), paper=(1.6, 1.5)),
    Technique("call by call", STD / "autoregressive.py", ("Hello,",), tokens=10),
    Technique("four branches", STD / "fork.py", (*PROMPT, "--branches", "4", "--seed", "1")),
    Technique("beam search, 3", STD / "beam_search.py", (*PROMPT, "--beams", "3"), tokens=16, paper=(17, 13)),
    Technique("beam search, 5", STD / "beam_search.py", (*PROMPT, "--beams", "5"), tokens=16),
    Technique("prompt lookup", STD / "prompt_lookup.py", ("--prompt", "374+588=962. 374+588=", "--max-tokens", "32")),
    Technique("Jacobi", STD / "jacobi.py", (*PROMPT, "--max-tokens", "32")),
    Technique("attention sink", STD / "attention_sink.py", (*PROMPT, "--max-tokens", "200")),
    Technique("JSON schema", GUESTS / "structured.py"),
    Technique("agent, 8 tools", GUESTS / "agent.py", ("128", "8", "24")),
)


def bundle(technique: Technique, directory: Path) -> tartlet.Source:
    """Return a program that runs a technique and counts."""
    directory.mkdir()
    shutil.copy(GUESTS / "counted.py", directory / "main.py")
    shutil.copy(technique.source, directory / "technique.py")
    return tartlet.Source.from_directory(directory)


async def counted(client: tartlet.AsyncClient, technique: Technique, directory: Path) -> tuple[int, int, int]:
    """Run a technique; return its tokens, its calls of the inference layer, and those of the control layer.

    Raises:
        RuntimeError: the program failed, or told nothing.
    """
    run = await client.run(spec=tartlet.LaunchSpec(source=bundle(technique, directory), args=list(technique.args)))
    told = ""
    async for event in run:
        if isinstance(event, tartlet.Message):
            told = event.text
    if run.ended is None or not run.ended.success or not told:
        raise RuntimeError(f"{technique.name} failed: {run.ended and run.ended.error}")
    counts = json.loads(told)
    inference = control = 0
    for op, count in counts["calls"].items():
        if CALLS[Op(int(op))].queue:
            inference += count
        else:
            control += count
    return technique.tokens or counts["tokens"], inference, control


async def measure() -> report.Report:
    """Count the calls of each technique."""
    title = "Calls of programs for a generated token, demo model"
    columns = ["technique", "tokens", "inference calls a token", "control calls a token", "paper: inference, control"]
    made = report.Report("techniques", title, columns)
    with tempfile.TemporaryDirectory(prefix="tt-") as scratch:
        async with running_stack(model=MODEL) as stack, tartlet.AsyncClient(stack.address) as client:
            for number, technique in enumerate(TECHNIQUES):
                tokens, inference, control = await counted(client, technique, Path(scratch) / str(number))
                paper = "" if technique.paper is None else ", ".join(f"{each:g}" for each in technique.paper)
                made.rows.append((technique.name, tokens, inference / tokens, control / tokens, paper))
    made.notes.append("a decode step is three calls on a queue: embed_txt, forward_table and sample")
    return made


def main() -> int:
    """Run the command line."""
    parser = report.parser("techniques", __doc__, repeat=1, goals=False, plots=False)
    args = parser.parse_args()
    install_uvloop()
    return report.emit([asyncio.run(measure())], args)


if __name__ == "__main__":
    sys.exit(main())
